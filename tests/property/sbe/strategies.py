"""Test messages, generated from the layouts or built with extreme values."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tensorpool.sbe import Message, message
from tensorpool.sbe.codec import entry_class, value_class
from tensorpool.sbe.layout import (
    BlockLayout,
    DataLayout,
    FieldLayout,
    MessageLayout,
    integer_range,
    messages,
)

LONG = os.environ.get("TENSORPOOL_TEST_LONG") == "1"
HOSTILE = settings(max_examples=10_000 if LONG else 50, deadline=None)
VALID = settings(max_examples=2_000 if LONG else 50, deadline=None)
TIMEOUT_SECONDS = 1800 if LONG else 120

KINDS = sorted(message.CLASSES.values(), key=lambda kind: kind.__name__)
"""Every message class."""

LAYOUTS = list(messages())
"""Every message of every schema file. A class may serve a message of two files."""

ASCII = "".join(map(chr, range(128)))


def class_of(layout: MessageLayout) -> type[Message]:
    """Class of a message. A message that a later revision did not change has the class of the first."""
    key = (layout.schema, layout.name)
    return message.CLASSES.get(key) or message.CLASSES[layout.schema.removesuffix("-r2"), layout.name]


# --- generated


def messages_of(kind: type[Message]) -> SearchStrategy[Any]:
    """Strategy of messages of a class."""
    return _blocks(kind, kind.layout())


def _blocks(kind: type, layout: BlockLayout) -> SearchStrategy[Any]:
    parts: dict[str, SearchStrategy[Any]] = {}
    for field in layout.encoded_fields:
        parts[field.python_name] = _values(kind, field)
    for group in layout.groups:
        entries = _blocks(entry_class(kind, (group.python_name,)), group)
        parts[group.python_name] = st.lists(entries, max_size=3).map(tuple)
    for data in layout.data:
        parts[data.python_name] = _contents(data)
    return st.builds(kind, **parts)


def _values(kind: type, field: FieldLayout) -> SearchStrategy[Any]:
    low, high = limits(field)
    present: SearchStrategy[Any]
    if field.enum is not None:
        present = st.sampled_from(members(kind, field))
    elif field.is_array and field.primitive == "uint8":
        present = st.binary(min_size=field.length, max_size=field.length)
    elif field.is_array:
        present = st.tuples(*[st.integers(low, high)] * field.length)
    else:
        present = st.integers(low, high)
    return st.none() | present if field.optional else present


def _contents(data: DataLayout) -> SearchStrategy[Any]:
    max_size = min(data.max_length, 60)
    if not data.ascii:
        return st.binary(max_size=max_size)
    if data.bytewise:
        return st.binary(max_size=max_size).map(lambda raw: raw.decode("ascii", "surrogateescape"))
    return st.text(ASCII, max_size=max_size)


def limits(field: FieldLayout) -> tuple[int, int]:
    """Smallest and largest value other than the null value."""
    low, high = integer_range(field.primitive)
    if field.max_value is not None:
        high = field.max_value
    if field.optional:
        low += field.null == low
        high -= field.null == high
    return low, high


def members(kind: type, field: FieldLayout) -> list[Any]:
    """Values of an enum field."""
    enum = value_class(kind, field.python_name)
    return [False, True] if enum is bool else list(enum)


# --- built


def smallest(kind: type[Message]) -> Message:
    """Smallest values, absent optional fields, empty groups and var-data."""
    return _build(kind, kind.layout(), extreme=0, count=0, size=0, absent=True)


def absent(kind: type[Message]) -> Message:
    """Absent optional fields and empty var-data, one entry in each group."""
    return _build(kind, kind.layout(), extreme=1, count=1, size=0, absent=True)


def lowest(kind: type[Message]) -> Message:
    """Smallest values in all fields, one entry in each group."""
    return _build(kind, kind.layout(), extreme=0, count=1, size=1, absent=False)


def largest(kind: type[Message], count: int = 3, size: int = 300) -> Message:
    """Largest values in all fields, `count` entries in each group, `size` bytes in each var-data if
    allowed."""
    return _build(kind, kind.layout(), extreme=1, count=count, size=size, absent=False)


def _build(kind: Any, layout: BlockLayout, *, extreme: int, count: int, size: int, absent: bool) -> Any:
    values: dict[str, Any] = {}
    for field in layout.encoded_fields:
        value: Any = limits(field)[extreme]
        if field.optional and absent:
            value = None
        elif field.enum is not None:
            value = members(kind, field)[-extreme]
        elif field.is_array and field.primitive == "uint8":
            value = bytes([value]) * field.length
        elif field.is_array:
            value = (value,) * field.length
        values[field.python_name] = value
    for group in layout.groups:
        entry = entry_class(kind, (group.python_name,))
        built = _build(entry, group, extreme=extreme, count=min(count, 3), size=size, absent=absent)
        values[group.python_name] = (built,) * count
    for data in layout.data:
        length = min(size, data.max_length)
        values[data.python_name] = ASCII[-1] * length if data.ascii else b"\xff" * length
    return kind(**values)
