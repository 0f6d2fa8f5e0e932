"""Settings as TOML, with the origin of each value beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from . import toml_text
from .sources import DEFAULT, Origin
from .spec import FieldSpec, TableSpec
from .toml_text import Path as KeyPath


def render_tables(table: TableSpec, made: Any, path: KeyPath, origins: Mapping[KeyPath, Origin]) -> str:
    """One role's table and those below it."""
    return "\n".join(_lines(table, made, path, origins, is_entry=False))


def _lines(
    table: TableSpec, made: Any, path: KeyPath, origins: Mapping[KeyPath, Origin], *, is_entry: bool
) -> Iterator[str]:
    name = ".".join(toml_text.key(part) for part in path if isinstance(part, str))
    yield f"[[{name}]]" if is_entry else f"[{name}]"
    # Plain keys come first: after the first table below they would belong to that one.
    for one in table.fields.values():
        value = getattr(made, one.attribute)
        if one.nested is None or (one.is_array and not value):
            yield _line(one, value, origins.get((*path, one.key), DEFAULT))
    for one in table.fields.values():
        if one.nested is None:
            continue
        value = getattr(made, one.attribute)
        for index, entry in enumerate(value) if one.is_array else ():
            yield ""
            yield from _lines(one.nested, entry, (*path, one.key, index), origins, is_entry=True)
        if not one.is_array:
            yield ""
            yield from _lines(one.nested, value, (*path, one.key), origins, is_entry=False)


def _line(one: FieldSpec, value: Any, origin: Origin) -> str:
    came_by = "".join(ch if ch.isprintable() else "?" for ch in str(origin))
    key = toml_text.key(one.key)
    if one.nested is not None:
        return f"{key} = []  # {came_by}"
    assert one.kind is not None, "a field is a table or has a kind"
    if value is None:
        return f"# {key} is not set  # {came_by}"
    if one.is_secret:
        return f"# {key} is set, and not shown  # {came_by}"
    return f"{key} = {one.kind.literal(value)}  # {came_by}"
