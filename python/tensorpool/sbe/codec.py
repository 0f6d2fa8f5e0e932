"""Makes the encoder and decoder of a message class: layout -> source -> functions.

Compiling takes about a millisecond a message, so it happens when a class is first used, not at import.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

from . import faults
from .layout import FieldLayout, MessageLayout
from .source import Slot, Source, decoder_source, encoder_source, field_table

_MISSING = object()
_ENCODER_NAMES = {
    "FAULTS": (struct.error, TypeError, ValueError, AttributeError, OverflowError),
    "refuse": faults.refuse,
    "member": faults.member,
    "truth": faults.truth,
    "byte_string": faults.byte_string,
    "filled": faults.filled,
}
_DECODER_NAMES = {
    "MISSING": _MISSING,
    "new": object.__new__,
    "cut": faults.cut,
    "cut_block": faults.cut_block,
    "short_block": faults.short_block,
    "lying_count": faults.lying_count,
    "lying_length": faults.lying_length,
    "unknown_member": faults.unknown_member,
    "too_large": faults.too_large,
    "not_ascii": faults.not_ascii,
}


@dataclass(frozen=True, slots=True)
class Codec:
    """`decode` takes (buffer, first byte of the block, end, acting block length)."""

    layout: MessageLayout
    encode: Callable[[Any], bytes]
    decode: Callable[[Any, int, int, int], tuple[Any, int]]


def compile_codec(kind: type, layout: MessageLayout) -> Codec:
    encoder, decoder = encoder_source(layout), decoder_source(layout)
    names: dict[str, Any] = {**_ENCODER_NAMES, "LAYOUT": layout}
    for name, codes in encoder.structs.items():
        names[name] = struct.Struct(f"<{codes}").pack
    for name, (slot, one) in encoder.enums.items():
        names[name] = value_class(entry_class(kind, slot), one.python_name)
    encode = _run(encoder, "encode", layout, names)

    names = dict(_DECODER_NAMES)
    for name, codes in decoder.structs.items():
        names[name] = struct.Struct(f"<{codes}").unpack_from
    for name, (slot, one) in decoder.enums.items():
        names[name] = _meanings(entry_class(kind, slot), one).get
    for name, slot in decoder.entries.items():
        names[name] = entry_class(kind, slot)
    for name, block in decoder.fields.items():
        names[name] = field_table(block)
    return Codec(layout, encode, _run(decoder, "decode", layout, names))


def _run(source: Source, function: str, layout: MessageLayout, names: dict[str, Any]) -> Any:
    # The source is made from the package's own schema files, never from what arrives on a wire.
    exec(compile(source.text(), f"<sbe {layout.schema} {layout.name} {function}>", "exec"), names)
    return names[function]


def _meanings(owner: type, one: FieldLayout) -> dict[int, Any]:
    """Raw value -> what it means; the null of an optional enum means None."""
    enum = value_class(owner, one.python_name)
    known: dict[int, Any] = {0: False, 1: True} if enum is bool else {int(m): m for m in enum}
    if one.null is not None:
        known[one.null] = None
    return known


def entry_class(kind: type, slot: Slot) -> type:
    """The class of a group's entries, from the annotation `tuple[Entry, ...]`."""
    for attribute in slot:
        kind = get_args(get_type_hints(kind)[attribute])[0]
    return kind


def value_class(owner: type, attribute: str) -> Any:
    """The class of a field's values, from the annotation `Value` or `Value | None`."""
    hint = get_type_hints(owner)[attribute]
    return next((arg for arg in get_args(hint) if arg is not type(None)), hint)
