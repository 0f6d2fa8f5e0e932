"""Docstrings of the public API, native classes included: what `help()` shows."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Iterable, Iterator
from importlib import import_module

import pytest

MODULES = (
    "tensorpool",
    "tensorpool._native",
    "tensorpool.cuda",
    "tensorpool.discovery",
    "tensorpool.errors",
    "tensorpool.notebook",
    "tensorpool.pipeline",
    "tensorpool.pipeline.report",
    "tensorpool.recording",
    "tensorpool.service",
    "tensorpool.spark",
    "tensorpool.spark.tensors",
)

_METHODS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    property,
    classmethod,
    staticmethod,
    functools.cached_property,
)


def _is_ours(kind: type) -> bool:
    return kind.__module__.split(".")[0] == "tensorpool"


def _class_members(kind: type, name: str) -> Iterator[tuple[str, object]]:
    """The class, its methods and properties, those of its bases, and its nested classes."""
    yield name, kind
    for base in filter(_is_ours, kind.__mro__):
        for attribute, member in vars(base).items():
            if attribute.startswith("_"):
                continue
            # Attributes of a native class; of a Python class with slots they have no docstring.
            is_attribute = base.__module__ == "tensorpool._native" and isinstance(
                member, types.MemberDescriptorType
            )
            if isinstance(member, _METHODS) or is_attribute:
                yield f"{base.__module__}.{base.__qualname__}.{attribute}", member
            elif isinstance(member, type) and _is_ours(member):
                yield from _class_members(member, f"{member.__module__}.{member.__qualname__}")


def _members(modules: Iterable[str]) -> dict[str, object]:
    members: dict[str, object] = {}
    for module_name in modules:
        module = import_module(module_name)
        members[module_name] = module
        names = getattr(module, "__all__", None) or dir(module)
        for name in names:
            member = getattr(module, name)
            if name.startswith("_"):
                continue
            if isinstance(member, type) and _is_ours(member):
                members.update(_class_members(member, f"{member.__module__}.{member.__qualname__}"))
            elif inspect.isroutine(member) or inspect.ismodule(member):
                members[f"{module_name}.{name}"] = member
    return members


def _has_docstring(member: object) -> bool:
    text = (getattr(member, "__doc__", None) or "").strip()
    # What `dataclass` generates: the signature.
    is_generated = isinstance(member, type) and text.startswith(f"{member.__name__}(")
    return bool(text) and not is_generated


def test_every_public_member_has_a_docstring() -> None:
    missing = {name for name, member in _members(MODULES).items() if not _has_docstring(member)}
    assert sorted(missing) == []


def test_every_public_member_of_the_torch_module_has_a_docstring() -> None:
    pytest.importorskip("torch", reason="tensorpool.torch cannot be imported without torch")
    missing = {name for name, member in _members(["tensorpool.torch"]).items() if not _has_docstring(member)}
    assert sorted(missing) == []


@pytest.mark.parametrize(
    "name", ["Consumer", "Frame", "MediaDriver", "OfferResult", "Producer", "Progress", "Slot"]
)
def test_methods_of_native_classes_have_a_signature(name: str) -> None:
    kind = getattr(import_module("tensorpool._native"), name)
    for attribute, member in vars(kind).items():
        if not attribute.startswith("_") and isinstance(member, types.MethodDescriptorType):
            assert inspect.signature(member).parameters, attribute
