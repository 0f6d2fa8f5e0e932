"""Signatures and notes of attributes, read from source files and from the stub of the native module.

Annotations are shown as they are written: what `inspect` returns for them is longer and says less.
"""

from __future__ import annotations

import ast
import importlib
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Final, TypeAlias

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
_MAX_LINE: Final = 88


@dataclass(frozen=True, slots=True)
class Attribute:
    """A field of a dataclass, a member of an enum, or a class attribute, as the source has it."""

    name: str
    annotation: str
    value: str
    note: str


@cache
def _tree(module: str) -> ast.Module:
    path = Path(importlib.import_module(module).__file__ or "")
    if path.suffix == ".so":
        path = path.with_name("_native.pyi")
    return ast.parse(path.read_text("utf-8"))


def find_class(name: str) -> type | None:
    """A class of the package by its name, from the modules that are imported."""
    for module in _modules():
        found = vars(module).get(name)
        if isinstance(found, type) and found.__module__ == module.__name__:
            return found
    return None


def constant_note(name: str) -> str:
    """The text below the definition of a constant of the package, or "" if there is none."""
    for module in _modules():
        body = _tree(module.__name__).body if name in vars(module) else []
        for index, item in enumerate(body):
            targets = item.targets if isinstance(item, ast.Assign) else [getattr(item, "target", None)]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                return _note(body, index + 1)
    return ""


def _modules() -> list[ModuleType]:
    return [
        module
        for name, module in sorted(sys.modules.items())
        if name.split(".")[0] == "tensorpool" and name.count(".") and hasattr(module, "__file__")
    ]


def class_node(kind: type) -> ast.ClassDef | None:
    """The definition of a class, or None for one that is made at run time."""
    body: list[ast.stmt] = _tree(kind.__module__).body
    node: ast.ClassDef | None = None
    for name in kind.__qualname__.split("."):
        node = next((item for item in body if isinstance(item, ast.ClassDef) and item.name == name), None)
        if node is None:
            return None
        body = node.body
    return node


def function_node(owner: type | str, name: str) -> Function | None:
    """The definition of a method of a class, or of a function of a module."""
    node = _tree(owner) if isinstance(owner, str) else class_node(owner)
    body = node.body if node is not None else []
    # The last definition: overloads come before it. A setter takes what the getter returns.
    found = [
        item for item in body if isinstance(item, Function) and item.name == name and not _is_setter(item)
    ]
    return found[-1] if found else None


def _is_setter(node: Function) -> bool:
    return any(isinstance(item, ast.Attribute) and item.attr == "setter" for item in node.decorator_list)


def method_order(kind: type) -> dict[str, int]:
    """The place of each method in the definition of a class."""
    node = class_node(kind)
    return {
        item.name: index
        for index, item in enumerate(node.body if node is not None else [])
        if isinstance(item, Function | ast.ClassDef)
    }


def attributes(kind: type) -> list[Attribute]:
    """The public attributes that a class body declares, each with the text below it."""
    node = class_node(kind)
    found = []
    for index, item in enumerate(node.body if node is not None else []):
        target: ast.expr
        if isinstance(item, ast.AnnAssign):
            target, annotation = item.target, _text(item.annotation)
        elif isinstance(item, ast.Assign):
            target, annotation = item.targets[0], ""
        else:
            continue
        if isinstance(target, ast.Name) and not target.id.startswith("_") and node is not None:
            value = _text(item.value) if item.value is not None else ""
            note = _note(node.body, index + 1) or _setting_text(item.value)
            found.append(Attribute(target.id, annotation, value, note))
    return found


def slot_note(kind: type, name: str) -> str:
    """The text below `self.<name> = …` in the constructor of a class with slots."""
    node = function_node(kind, "__init__")
    for index, item in enumerate(node.body if node is not None else []):
        targets = item.targets if isinstance(item, ast.Assign) else []
        is_slot = any(isinstance(target, ast.Attribute) and target.attr == name for target in targets)
        if is_slot and node is not None:
            return _note(node.body, index + 1)
    return ""


def _setting_text(value: ast.expr | None) -> str:
    """What a `setting("…")` says of itself."""
    if (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Name)
        and value.func.id == "setting"
        and isinstance(text := value.args[0], ast.Constant)
    ):
        return str(text.value)
    return ""


def _note(body: list[ast.stmt], index: int) -> str:
    if (
        index < len(body)
        and isinstance(item := body[index], ast.Expr)
        and isinstance(item.value, ast.Constant)
    ):
        return " ".join(str(item.value.value).split())
    return ""


def signature(node: Function, name: str, keywords: list[str]) -> str:
    """The call as it is written, without `self`; one parameter a line if it is long.

    `keywords` are those that the function takes as a TypedDict.
    """
    parameters = [*_parameters(node, keywords)]
    prefix = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    result = f" -> {_text(node.returns)}" if node.returns is not None and name != "__init__" else ""
    line = f"{prefix}{name}({', '.join(parameters)}){result}"
    if len(line) <= _MAX_LINE:
        return line
    return "\n".join([f"{prefix}{name}(", *(f"    {parameter}," for parameter in parameters), f"){result}"])


def _parameters(node: Function, keywords: list[str]) -> list[str]:
    arguments = node.args
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(plain) - len(arguments.defaults)) + list(arguments.defaults)
    shown = [_parameter(arg, default) for arg, default in zip(plain, defaults, strict=True)]
    if plain and plain[0].arg in ("self", "cls"):
        shown = shown[1:]
    if arguments.vararg is not None:
        shown.append(f"*{_parameter(arguments.vararg, None)}")
    named = [
        _parameter(arg, default)
        for arg, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    named += keywords
    if named and arguments.vararg is None:
        shown.append("*")
    shown += named
    if arguments.kwarg is not None and not keywords:
        shown.append(f"**{_parameter(arguments.kwarg, None)}")
    return shown


def keyword_options(node: Function) -> str | None:
    """The name of the TypedDict that holds the keywords of a function (`**options: Unpack[Options]`)."""
    return _unpacked(node.args.kwarg) if node.args.kwarg is not None else None


def _unpacked(argument: ast.arg) -> str | None:
    annotation = argument.annotation
    if isinstance(annotation, ast.Subscript) and _text(annotation.value) == "Unpack":
        return _text(annotation.slice)
    return None


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    shown = argument.arg if argument.annotation is None else f"{argument.arg}: {_text(argument.annotation)}"
    if default is None:
        return shown
    return f"{shown}={_text(default)}" if argument.annotation is None else f"{shown} = {_text(default)}"


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return f'"{node.value}"' if '"' not in node.value else repr(node.value)
    return ast.unparse(node)


def annotation_of(node: Function) -> str:
    """What a property returns."""
    return _text(node.returns) if node.returns is not None else ""
