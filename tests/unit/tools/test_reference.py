"""The generated pages of the documentation match the code."""

from __future__ import annotations

import dataclasses
import importlib
import re
import subprocess
import sys

import click
import pytest

from tensorpool.cli import cli
from tensorpool.runtime.config import ROLES
from tensorpool.runtime.config.sources import leaves
from tensorpool.runtime.config.spec import RESERVED, spec_of
from tensorpool.sbe import layout
from tools import reference
from tools.reference import api, commands, configuration, messages, protocol

ROOT = reference.DIRECTORY.parent
REMEDY = "run: python -m tools.reference"


@pytest.mark.parametrize("name", reference.PAGES)
def test_reference_page_is_up_to_date(name: str) -> None:
    present = (reference.DIRECTORY / name).read_text("utf-8")
    assert present == reference.PAGES[name](present), REMEDY


@pytest.mark.parametrize("name", api.PAGES)
def test_every_attribute_and_property_has_a_text(name: str) -> None:
    page = (reference.DIRECTORY / name).read_text("utf-8")
    owner, silent = "", []
    for line in page.splitlines():
        if heading := re.match(r"#+ `(.*)`", line):
            owner = heading[1]
        elif row := re.match(r"\| `(\w+)` \|.*\| +\|$", line):
            silent.append(f"{owner}.{row[1]}")
    assert not silent, "write a docstring below the field"


@pytest.mark.parametrize("document", reference.PROTOCOL_DOCUMENTS)
def test_protocol_page_has_a_place_for_every_requirement(document: str) -> None:
    text = (reference.DIRECTORY / "protocol" / f"{document}.md").read_text("utf-8")
    assert protocol.missing_sections(document, text) == set()


def test_reference_command_checks_the_pages() -> None:
    command = [sys.executable, "-m", "tools.reference", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_reference_check_names_an_outdated_page(monkeypatch, capsys, tmp_path) -> None:
    from tools.reference.__main__ import main

    monkeypatch.setattr(reference, "DIRECTORY", tmp_path)
    monkeypatch.setattr(reference, "PAGES", {"page.md": lambda _: "new\n"})
    monkeypatch.setattr(sys, "argv", ["reference", "--check"])
    assert main() == 1
    assert "page.md is out of date" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["reference"])
    assert main() == 0
    assert (tmp_path / "page.md").read_text() == "new\n"


def test_messages_page_has_every_message_field_and_enum_member() -> None:
    page = messages.render()
    for schema in layout.schemas():
        section = page.split(f"\n## {schema.name}\n")[1].split("\n## ")[0]
        for message in schema.messages.values():
            assert f"### {message.name}" in section
            if "the same as in" not in section.split(f"### {message.name}")[1].split("###")[0]:
                names = [field.name for field in message.fields] + [data.name for data in message.data]
                assert all(f"`{name}`" in section for name in names)
        for enum in schema.enums.values():
            if enum.name != "Bool":
                assert all(f"`{member}` {value}" in section for member, value in enum.members.items())


@pytest.mark.parametrize("name", api.PAGES)
def test_api_page_has_every_public_name_and_method(name: str) -> None:
    page = api.render(name)
    module = importlib.import_module(api.PAGES[name].module)
    for public in module.__all__:
        if public.startswith("__"):
            continue
        assert page.count(f"\n### `{public}`\n") == 1
        section = page.split(f"\n### `{public}`\n")[1].split("\n### ")[0]
        kind = getattr(module, public)
        for attribute, _, _ in api.class_members(kind) if isinstance(kind, type) else ():
            assert f"\n#### `{public}.{attribute}`\n" in section or f"\n| `{attribute}` |" in section


def test_api_page_shows_native_members_with_signature_and_text() -> None:
    page = api.render("reference/api.md")
    offer = page.split("\n#### `Producer.offer`\n")[1].split("\n#### ")[0]
    assert "timestamp_ns: int | None = None" in offer
    assert "-> OfferResult" in offer
    assert "Raises [`UnsupportedDtype`](#UnsupportedDtype)" in offer
    # An indented example of a docstring is a code block.
    assert "```python\nresult = producer.offer(image)\n" in offer
    # The keywords of a TypedDict are listed, with the defaults that the options have.
    producer = page.split("\n#### `Context.producer`\n")[1].split("```\n")[0]
    assert "    nslots: int | None = None,\n" in producer


@pytest.mark.parametrize("name", api.PAGES)
def test_examples_of_docstrings_are_code_blocks(name: str) -> None:
    text = re.sub(r"(?s)```.*?```", "", api.render(name))
    assert re.findall(r"(?m)^(?:for|with|class|def|async for) .*:(?: *#.*)?$", text) == [], (
        "indent the example in the docstring by four spaces"
    )
    assert " = ...," not in api.render(name)


def test_public_name_without_a_section_is_refused(monkeypatch) -> None:
    page = api.PAGES["reference/api.md"]
    sections = {
        title: names.replace("Consumer Frame ", "Consumer ") for title, names in page.sections.items()
    }
    monkeypatch.setitem(api.PAGES, "reference/api.md", dataclasses.replace(page, sections=sections))
    with pytest.raises(ValueError, match="no section for Frame"):
        api.render("reference/api.md")


def test_commands_page_has_every_command_and_option() -> None:
    page = commands.render()

    def check(command: click.Command, path: str) -> None:
        section = page.split(f" `{path}`\n")[1].split("\n##")[0]
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                assert all(option in section for option in parameter.opts), (path, parameter.opts)
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                child = command.get_command(context, name)
                assert child is not None
                check(child, f"{path} {name}")

    context = click.Context(cli)
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        check(command, f"tensorpool {name}")


def test_configuration_page_has_every_key_of_every_role() -> None:
    page = configuration.render()
    for role, cls in ROLES.items():
        if not cls.__module__.startswith("tensorpool."):
            continue
        section = page.split(f"\n## `[{role}]`\n")[1].split("\n## ")[0]
        for leaf in leaves(spec_of(cls)):
            assert f"`{leaf[-1]}`" in section


def test_every_role_has_a_reserved_table_and_described_keys() -> None:
    configuration.import_roles()
    for role, cls in ROLES.items():
        if cls.__module__.startswith("tensorpool."):
            assert role in {*RESERVED, "runtime", "log"}
            assert spec_of(cls).doc
            assert all(field.doc.endswith(".") for field in spec_of(cls).fields.values())
