"""The reference page says what the schema files say today."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tensorpool.sbe import layout, reference

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "reference" / "messages.md"
REMEDY = "run: python -m tensorpool.sbe.reference > docs/reference/messages.md"


def test_the_page_is_up_to_date():
    assert PAGE.read_text() == reference.render(), REMEDY


def test_the_page_names_every_message_field_and_enum_member():
    page = reference.render()
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


def test_the_module_prints_the_page():
    command = [sys.executable, "-m", "tensorpool.sbe.reference"]
    done = subprocess.run(command, cwd=ROOT / "python", capture_output=True, text=True, check=True)
    assert done.stdout == PAGE.read_text(), REMEDY
