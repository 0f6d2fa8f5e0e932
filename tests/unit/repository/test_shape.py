"""The shape of the package: its number of modules, one meaning for each class name, typed borders.

`docs/decisions/shape-of-the-tree.md` gives the reasons.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import tensorpool

PACKAGE = Path(tensorpool.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
TREES = {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_bytes()) for path in MODULES}

MAX_MODULES = 319
"""Below 320."""

# `dict[str, Any]` by file, where the keys are not known to the package. The list only gets shorter.
UNTYPED_DICTS = {
    "text.py": 1,  # `JsonObject`, the name of a JSON object whose keys its reader checks
    "sbe/codec.py": 1,  # the namespace of generated code
    "recording/arrow_format.py": 1,  # a row of a table, by the schema of the table
}

# `tensorpool.Event` is a change of a connection, `tensorpool.service.Event` a message of a service
# (service §4). Users see both under their package.
TWO_MEANINGS = {"Event": {"context/context.py", "service/events.py"}}


def class_definitions() -> Iterator[tuple[str, str]]:
    """Name and file of every public class."""
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield node.name, name


def count_untyped_dicts(tree: ast.AST) -> int:
    """How often `dict[str, Any]` is in a module."""
    return sum(
        isinstance(node, ast.Subscript) and ast.unparse(node) == "dict[str, Any]" for node in ast.walk(tree)
    )


def test_number_of_modules_is_bounded() -> None:
    assert len(MODULES) <= MAX_MODULES, "merge two modules of one concept"


def test_class_name_has_one_meaning() -> None:
    files = defaultdict(set)
    for name, file in class_definitions():
        files[name].add(file)
    repeated = {name: where for name, where in files.items() if len(where) > 1}
    assert repeated == TWO_MEANINGS


def test_untyped_dicts_are_the_listed_ones() -> None:
    found = {name: count for name, tree in TREES.items() if (count := count_untyped_dicts(tree))}
    assert found == UNTYPED_DICTS


def test_constructor_is_named_after_its_source() -> None:
    """`from_x` instead of `of`."""
    found = [
        f"{name}:{node.lineno}"
        for name, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name == "of"
    ]
    assert found == []


def test_untyped_dict_is_counted_in_any_annotation() -> None:
    source = "x: dict[str, Any] = {}\ndef f(a: list[dict[str, Any]]) -> dict[str, Any] | None: ...\n"
    assert count_untyped_dicts(ast.parse(source)) == 3
