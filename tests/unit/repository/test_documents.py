"""The documents: their links have targets, and the commands that they show exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from tensorpool.cli import cli

ROOT = Path(__file__).parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
_SHELL_OPERATORS = ("|", "||", "&&", "&", ">", ">>", "2>", "\\")


def page_name(page: Path) -> str:
    """Path of a page, as a test id."""
    return str(page.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """Anchors that GitHub generates from the headings, and explicit ones."""
    text = page.read_text("utf-8")
    heads = re.findall(r"^#+ +(.+?) *$", text, re.M)
    explicit = re.findall(r'<a id="([^"]+)">', text)
    return {*explicit, *(re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads)}


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_link_has_a_target(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


PROTOCOL = ROOT / "docs" / "protocol"
SOURCES = sorted(
    path
    for pattern in ("crates/**/*.rs", "python/**/*.py", "python/**/*.pyi", "tests/**/*.py", "tools/**/*.py")
    for path in ROOT.glob(pattern)
    if path.name != "test_conformance_tool.py"  # its sections are made up
)


def test_every_cited_section_of_the_protocol_has_an_anchor() -> None:
    """A comment says "wire §8.3", and docs/protocol/wire.md has that section."""
    pages = {page.stem: anchors(page) for page in PROTOCOL.glob("*.md")}
    citations = {
        (document, section)
        for path in [*SOURCES, *PAGES]
        for document, section in re.findall(
            r"\b(wire|driver|discovery|service|bridge) §(\d+(?:\.\d+)*[a-z]?(?:\.\d+)*)",
            path.read_text("utf-8"),
        )
    }
    assert len(citations) > 80
    assert {(document, section) for document, section in citations if section not in pages[document]} == set()


def test_every_cited_decision_has_an_anchor() -> None:
    known = anchors(PROTOCOL / "decisions.md")
    citations = {
        int(number)
        for path in [*SOURCES, *PAGES]
        for number in re.findall(r"\b[Dd]ecisions? (\d+)", path.read_text("utf-8"))
    }
    assert len(citations) > 10
    assert {number for number in citations if f"decision-{number}" not in known} == set()


def named_files(text: str) -> set[str]:
    """Paths of source files in backquotes, with their braces expanded."""
    found = set()
    for name in re.findall(r"`([\w./{},-]+\.(?:py|rs|pyi|toml|xml|cmake))`", text):
        before, braces, after = re.fullmatch(r"([^{]*)(?:\{([^}]*)\})?(.*)", name).groups()  # type: ignore[union-attr]
        found |= {before + part + after for part in (braces or "").split(",")}
    return found


def test_every_file_that_the_architecture_names_exists() -> None:
    """`core`, `dataplane` and `native` are crates; other paths are below python/tensorpool or the root."""
    names = {name for name in named_files((ROOT / "ARCHITECTURE.md").read_text("utf-8")) if "/" in name}
    assert len(names) > 100
    places = (ROOT / "crates", ROOT / "python" / "tensorpool", ROOT)
    assert {name for name in names if not any((place / name).exists() for place in places)} == set()


def shown_commands(page: Path) -> list[str]:
    """Lines of the page that start with a `tensorpool` command."""
    text = page.read_text("utf-8")
    # Match opening and closing fences in pairs.
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    lines = [
        line.strip().removeprefix("$ ")
        for language, block in blocks
        if language in ("", "sh", "console", "bash")
        for line in block.splitlines()
    ]
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    lines += [" ".join(code.split()) for code in re.findall(r"`([^`]*tensorpool [^`]+)`", prose)]
    return [line for line in lines if re.match(r"(\w+=\S+ +)*tensorpool( |$)", line)]


def parse(line: str) -> tuple[click.Command, list[str]]:
    """The command of a line, and its arguments."""
    arguments = [word for word in shlex.split(line, comments=True) if not re.match(r"[A-Z_]+=", word)][1:]
    command: click.Command = cli
    while isinstance(command, click.Group) and arguments and arguments[0] in command.commands:
        command = command.commands[arguments.pop(0)]
    return command, arguments


@pytest.mark.parametrize("page", [page for page in PAGES if shown_commands(page)], ids=page_name)
def test_every_shown_command_and_option_exists(page: Path) -> None:
    for line in shown_commands(page):
        command, arguments = parse(line)
        if isinstance(command, click.Group):
            # A group alone, several commands in one (`ls|info`), or a group that runs without a command.
            assert (
                not arguments or "|" in arguments[0] or arguments[0].startswith(("-", *_SHELL_OPERATORS))
            ), line
            # `tensorpool run` is a command of its own.
            command = command if command is cli else command.commands.get("run", command)
        known = {
            option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
        }
        for word in arguments:
            if word in _SHELL_OPERATORS:
                break
            option = word.partition("=")[0]
            assert not re.match(r"--\w", word) or option in known | {"--help"}, line


def test_pages_and_commands_are_found() -> None:
    """The other tests would pass if they found no page and no command."""
    assert len(PAGES) > 40
    page = ROOT / "docs" / "explanation" / "what-it-does.md"
    assert len(shown_commands(page)) > 10
    assert "one-owner-of-the-memory" in anchors(page)
    assert parse("A=b tensorpool driver revoke --stream 1") == (
        cli.commands["driver"].commands["revoke"],  # type: ignore[attr-defined]
        ["--stream", "1"],
    )
