"""The shape of the package: its number of modules, one meaning for each class name, typed borders.

`docs/decisions/shape-of-the-tree.md` gives the reasons.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Collection, Iterator
from pathlib import Path

import tensorpool

PACKAGE = Path(tensorpool.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
TREES = {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_bytes()) for path in MODULES}

UNTYPED = "dict[str, Any]"
MAX_MODULES = 319
"""Below 320."""

# `tensorpool.Event` is a change of a connection, `tensorpool.service.Event` a message of a service
# (service §4). Users see both under their package.
TWO_MEANINGS = {"Event": {"context/context.py", "service/events.py"}}


def class_definitions() -> Iterator[tuple[str, str]]:
    """Name and file of every public class."""
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield node.name, name


def untyped_aliases() -> set[str]:
    """Names that stand for `dict[str, Any]`: `Row: TypeAlias = dict[str, Any]`."""
    return {
        ast.unparse(target)
        for tree in TREES.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and node.value is not None
        and ast.unparse(node.value) == UNTYPED
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    }


def count_untyped_dicts(tree: ast.AST, aliases: Collection[str] = ()) -> int:
    """How often a module says `dict[str, Any]`, or a name that stands for it."""
    return sum(
        ast.unparse(node) == UNTYPED
        if isinstance(node, ast.Subscript)
        else isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in aliases
        for node in ast.walk(tree)
    )


def test_number_of_modules_is_bounded() -> None:
    assert len(MODULES) <= MAX_MODULES, "merge two modules of one concept"


def test_class_name_has_one_meaning() -> None:
    files = defaultdict(set)
    for name, file in class_definitions():
        files[name].add(file)
    repeated = {name: where for name, where in files.items() if len(where) > 1}
    assert repeated == TWO_MEANINGS


def test_no_dict_is_untyped() -> None:
    aliases = untyped_aliases()
    found = {name: count for name, tree in TREES.items() if (count := count_untyped_dicts(tree, aliases))}
    assert found == {}, "use a dataclass or a TypedDict"


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


def test_name_of_an_untyped_dict_is_counted_at_each_use() -> None:
    source = "def f(row: Row) -> list[Row]: ...\ndef g(row: Other) -> None: ...\n"
    assert count_untyped_dicts(ast.parse(source), {"Row"}) == 2
