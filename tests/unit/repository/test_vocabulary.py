"""The vocabulary of names and of prose, and the docstrings of modules."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.unit.repository.vocabulary import (
    ROOT,
    exceptions,
    offences,
    prose_offences,
    prose_term,
    python_names,
    retired_term,
)

PACKAGE = ROOT / "python" / "tensorpool"
MODULES = sorted(PACKAGE.rglob("*.py"))
MAX_FIRST_LINE = 110


def test_names_use_no_retired_word() -> None:
    """A new name with a retired word fails; so does an exception that is no longer needed."""
    current, allowed = offences(), exceptions()
    added = [f"{location}  {term}" for location, term in sorted(current.items()) if location not in allowed]
    assert not added, "rename (see docs/reference/vocabulary.md):\n" + "\n".join(added)
    obsolete = [location for location in allowed if location not in current]
    assert not obsolete, "remove from vocabulary_exceptions.txt:\n" + "\n".join(obsolete)


def test_prose_uses_no_retired_word() -> None:
    """Comments, docstrings, messages and pages. There are no exceptions."""
    found = [f"{location}  {term}" for location, term in prose_offences().items()]
    assert not found, "rewrite (see docs/reference/vocabulary.md):\n" + "\n".join(found)


def test_list_of_exceptions_is_empty() -> None:
    assert exceptions() == []


PLANTED = {
    "comment.rs": "/// The regions\n/// that nobody\n/// has mapped.\nfn map() {}\n",
    "end_of_line.rs": "fn map() {} // somebody maps\n",
    "comment.py": "x = 1  # the driver is told\n",
    "two_lines.py": "# The stream goes\n# on.\n",
    "docstring.py": 'def f():\n    """What was said."""\n',
    "attribute.py": 'class C:\n    x: int\n    """The wish of a consumer."""\n',
    "message.py": 'raise ValueError(f"{x}: nobody answers")\n',
    "stub.pyi": "# whoever asks\n",
    "page.js": "const x = 1; // nobody reads it\n",
    "script.sh": "#!/bin/sh\n# The build\n# goes on.\n",
    "settings.toml": "x = 1  # told by the driver\n",
    "page.md": "# Page\n\nThe producer lets\ngo of it.\n",
}


@pytest.mark.parametrize("name", PLANTED)
def test_retired_word_in_prose_is_found(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(PLANTED[name], "utf-8")
    assert prose_offences(path)
    assert prose_offences(tmp_path) == prose_offences(path)


ORDINARY = {
    "code.rs": 'let told = "nobody"; let uri = "aeron:udp?endpoint=x//told"; /// The home directory.\n',
    "code.py": "told = file.tell()\n# Takes up to 2 s; commit words of a ring; accounts for every frame.\n",
    "page.md": "The lock is free; a driver takes up to a second. A consumer asks for a stream.\n",
}


@pytest.mark.parametrize("name", ORDINARY)
def test_code_and_ordinary_english_are_allowed(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(ORDINARY[name], "utf-8")
    assert prose_offences(path) == {}


def test_retired_phrase_is_named_with_its_replacement() -> None:
    assert prose_term("It goes\n on.") == "goes on (continue, resume)"
    assert prose_term("It continues.") is None


@pytest.mark.parametrize(
    "name",
    [
        "Told",
        "consumerTold",
        "heard_ns",
        "_said",
        "go_on",
        "is_let_go",
        "MOST_BYTES",
        "_LONGEST_NAME",
        "as_json",
    ],
)
def test_retired_terms_are_found_in_any_case(name: str) -> None:
    assert retired_term(name) is not None


@pytest.mark.parametrize("name", ["search", "go_once", "MOSTLY_FULL", "most_recent", "shown_as_json"])
def test_other_names_are_allowed(name: str) -> None:
    assert retired_term(name) is None


def test_python_names_of_every_kind_are_checked(tmp_path: Path) -> None:
    source = tmp_path / "module.py"
    source.write_text(
        "import os as told_alias\n"
        "told_variable: int = 1\n"
        "def told_function(told_parameter, *told_rest): pass\n"
        "class ToldClass:\n    def told_method(self): self.told_attribute = 1\n"
        "try: pass\nexcept OSError as told_error: pass\n"
        "match 1:\n    case [*told_star] | told_capture: pass\n"
        "print(told_elsewhere)\n"
    )
    assert {name for name in python_names(source) if retired_term(name)} == {
        "told_alias", "told_variable", "told_function", "told_parameter", "told_rest", "ToldClass",
        "told_method", "told_attribute", "told_error", "told_star", "told_capture",
    }  # fmt: skip


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_module_docstring_starts_with_a_short_line(module: Path) -> None:
    docstring = ast.get_docstring(ast.parse(module.read_bytes()))
    assert docstring, f"{module.relative_to(ROOT)} has no docstring"
    assert len(docstring.splitlines()[0]) <= MAX_FIRST_LINE
