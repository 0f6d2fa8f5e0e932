"""The pages: what they link to is there, and the commands that they show can be typed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from tensorpool.cli import cli

ROOT = Path(__file__).parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
_ENDS = ("|", "||", "&&", "&", ">", ">>", "2>", "\\")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    heads = re.findall(r"^#+ +(.+?) *$", page.read_text("utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def shown(page: Path) -> list[str]:
    """Lines of the page that are, or begin with, a command of ours."""
    text = page.read_text("utf-8")
    # A fence that opens and the one that closes are told apart by taking both.
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    lines = [
        line.strip().removeprefix("$ ")
        for language, block in blocks
        if language in ("", "sh", "console", "bash")
        for line in block.splitlines()
    ]
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    lines += [" ".join(words.split()) for words in re.findall(r"`([^`]*tensorpool [^`]+)`", prose)]
    return [line for line in lines if re.match(r"(\w+=\S+ +)*tensorpool( |$)", line)]


def parse(line: str) -> tuple[click.Command, list[str]]:
    """The command, and what follows its name."""
    words = [word for word in shlex.split(line, comments=True) if not re.match(r"[A-Z_]+=", word)][1:]
    command: click.Command = cli
    while isinstance(command, click.Group) and words and words[0] in command.commands:
        command = command.commands[words.pop(0)]
    return command, words


@pytest.mark.parametrize("page", [page for page in PAGES if shown(page)], ids=name_of)
def test_every_command_that_a_page_shows_can_be_typed(page: Path) -> None:
    for line in shown(page):
        command, words = parse(line)
        if isinstance(command, click.Group):
            # A noun alone, several verbs in one (`ls|info`), or what is run without a verb.
            assert not words or "|" in words[0] or words[0].startswith(("-", *_ENDS)), line
            command = command.commands.get("run", command)
        known = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
        for word in words:
            if word in _ENDS:
                break
            option = word.partition("=")[0]
            assert not re.match(r"--\w", word) or option in known | {"--help"}, line


def test_links_and_lines_are_found() -> None:
    """So that what is true of all of them is not true of none."""
    assert len(PAGES) > 40
    assert len(shown(ROOT / "README.md")) > 10
    assert "one-owner-of-the-memory" in anchors(ROOT / "README.md")
    assert parse("A=b tensorpool driver revoke --stream 1") == (
        cli.commands["driver"].commands["revoke"],  # type: ignore[attr-defined]
        ["--stream", "1"],
    )
