"""Packages use only public names of each other."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator
from pathlib import Path

import tensorpool

PACKAGE = Path(tensorpool.__file__).parent
# Methods of named tuples begin with an underscore, and are public.
NAMED_TUPLE_METHODS = {"_make", "_replace", "_asdict", "_fields"}
# Descriptors store their values in the service that has them; both classes are of one package.
ALLOWED = {"service/declarations.py": {"_values", "_assign"}}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in NAMED_TUPLE_METHODS


def defined_names(tree: ast.AST) -> set[str]:
    """Names that a module defines, imports, or sets on `self` and `cls`: its own private names."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_own(node.value):
            names.add(node.attr)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)  # of `__slots__`
    return names


def is_own(value: ast.expr) -> bool:
    """Whether an expression is the object that the code belongs to."""
    if isinstance(value, ast.Name):
        return value.id in ("self", "cls")
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "super"


def is_context(value: ast.expr) -> bool:
    """Whether an expression is called a context, like `ctx` and `self._context`."""
    name = value.attr if isinstance(value, ast.Attribute) else getattr(value, "id", "")
    return name.lstrip("_") in ("ctx", "context")


def private_accesses(source: str, allowed: Container[str] = ()) -> Iterator[str]:
    """`line: expression` of each access to a private attribute that the module does not define.

    A private attribute of a context counts even if the module has a private name that is the same.
    """
    tree = ast.parse(source)
    names = defined_names(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or not is_private(node.attr) or is_own(node.value):
            continue
        if node.attr not in allowed and (node.attr not in names or is_context(node.value)):
            yield f"{node.lineno}: {ast.unparse(node)}"


def test_modules_access_no_private_attribute_of_another_module() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{access}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for access in private_accesses(
            path.read_text("utf-8"), ALLOWED.get(str(path.relative_to(PACKAGE)), ())
        )
    ]
    assert found == []


def test_private_access_is_detected_in_another_module_only() -> None:
    source = """
class Agent:
    def __init__(self, context):
        self._context = context
        self._conductor = context._conductor
        self._parts = []

    def work(self, other):
        other._parts.clear()
        return other._state
"""
    assert set(private_accesses(source)) == {"5: context._conductor", "10: other._state"}
