"""The generated pages of the documentation match the code."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tensorpool.runtime.config import ROLES
from tensorpool.runtime.config.sources import leaves
from tensorpool.runtime.config.spec import RESERVED, spec_of
from tensorpool.sbe import layout
from tools import reference
from tools.reference import configuration, messages, protocol

ROOT = reference.DIRECTORY.parent
REMEDY = "run: python -m tools.reference"


@pytest.mark.parametrize("name", reference.PAGES)
def test_reference_page_is_up_to_date(name: str) -> None:
    present = (reference.DIRECTORY / name).read_text("utf-8")
    assert present == reference.PAGES[name](present), REMEDY


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
