"""Columns as people write them, `mean double, peaks array<bigint>`, in the words of Spark's SQL."""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa

from ..errors import ConfigError

KINDS: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
}
_ONE: Final = re.compile(r"\s*([A-Za-z_]\w*)\s+(array\s*<\s*)?([a-z]+)\s*(>)?\s*", re.ASCII)
_TAKEN: Final = frozenset({"stream_id", "date", "epoch", "seq", "receive_time_ns", "time"})


def parse_columns(text: str) -> pa.Schema:
    """Raises ConfigError that says what would do."""
    fields: list[pa.Field] = []
    for part in text.split(","):
        match = _ONE.fullmatch(part)
        if match is None or bool(match[2]) != bool(match[4]) or match[3] not in KINDS:
            raise ConfigError(
                f"{part.strip()!r} is no column; write a name and one of {', '.join(KINDS)}, or array<…>"
            )
        name, kind = match[1], KINDS[match[3]]
        if name in _TAKEN or any(one.name == name for one in fields):
            raise ConfigError(f"column {name} would be there twice")
        fields.append(pa.field(name, pa.list_(pa.field("element", kind)) if match[2] else kind))
    return pa.schema(fields)


def columns_fault(text: str) -> str | None:
    try:
        parse_columns(text)
    except ConfigError as error:
        return str(error)
    return None
