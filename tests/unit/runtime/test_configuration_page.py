"""The reference page says what the code says today."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tensorpool.runtime.config import ROLES, reference
from tensorpool.runtime.config.sources import leaves
from tensorpool.runtime.config.spec import RESERVED, spec_of

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "reference" / "configuration.md"
REMEDY = "run: python -m tensorpool.runtime.config.reference > docs/reference/configuration.md"


def test_the_page_is_up_to_date():
    assert PAGE.read_text() == reference.render(), REMEDY


def test_the_page_names_every_key_of_every_role():
    page = reference.render()
    for role, cls in ROLES.items():
        if not cls.__module__.startswith("tensorpool."):
            continue
        section = page.split(f"\n## `[{role}]`\n")[1].split("\n## ")[0]
        for leaf in leaves(spec_of(cls)):
            assert f"`{leaf[-1]}`" in section


def test_every_role_has_a_reserved_table_and_a_sentence_for_each_key():
    reference.import_roles()
    for role, cls in ROLES.items():
        if cls.__module__.startswith("tensorpool."):
            assert role in {*RESERVED, "runtime", "log"}
            assert spec_of(cls).doc
            assert all(one.doc.endswith(".") for one in spec_of(cls).fields.values())


def test_the_module_prints_the_page():
    command = [sys.executable, "-m", "tensorpool.runtime.config.reference"]
    done = subprocess.run(command, cwd=ROOT / "python", capture_output=True, text=True, check=True)
    assert done.stdout == PAGE.read_text(), REMEDY
