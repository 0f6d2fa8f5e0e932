"""Makes the encoder and decoder of a message class: layout -> source -> functions.

Compiling takes about a millisecond a message, so it happens when a class is first used, not at import.

Writes the source of a message's encoder and decoder from its layout.

One straight function each way, so that no layout is walked while messages flow: fixed blocks go through
`struct.Struct`, groups are plain loops, and every read is preceded by a check against the bytes left.
Names in the source: `m` message, `e<n>` group entry at depth n, `buf`, `pos`, `limit` buffer, next byte, end.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, get_args, get_type_hints

from . import codec_errors
from .layout import (
    GROUP_HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    MAX_GROUP_COUNT,
    BlockLayout,
    DataLayout,
    FieldLayout,
    GroupLayout,
    MessageLayout,
)

Slot = tuple[str, ...]
"""The way from the message to a group: ("results", "payload_pools")."""


@dataclass(slots=True)
class Source:
    """Lines of a function, and the values that they refer to by name."""

    lines: list[str] = field(default_factory=list)
    structs: dict[str, str] = field(default_factory=dict)
    enums: dict[str, tuple[Slot, FieldLayout]] = field(default_factory=dict)
    entries: dict[str, Slot] = field(default_factory=dict)
    fields: dict[str, BlockLayout] = field(default_factory=dict)
    depth: int = 1
    _numbers: count[int] = field(default_factory=count)

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def fresh(self, prefix: str) -> str:
        return f"{prefix}{next(self._numbers)}"

    def struct(self, codes: str) -> str:
        for name, known in self.structs.items():
            if known == codes:
                return name
        name = self.fresh("struct_")
        self.structs[name] = codes
        return name

    def enum(self, slot: Slot, of: FieldLayout) -> str:
        name = self.fresh("enum_")
        self.enums[name] = (slot, of)
        return name

    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


# --- encoding -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Encoder:
    """Gathers neighbouring fixed values, so that each run of them is one `Struct.pack`."""

    source: Source
    codes: str = ""
    values: list[str] = field(default_factory=list)

    def fixed(self, code: str, value: str) -> None:
        self.codes += code
        self.values.append(value)

    def packed(self) -> str:
        text = f"{self.source.struct(self.codes)}({', '.join(self.values)})"
        self.codes, self.values = "", []
        return text

    def flush(self) -> None:
        if self.codes:
            self.source.line(f"add({self.packed()})")

    def block(self, layout: BlockLayout, item: str, slot: Slot) -> None:
        for one in layout.encoded_fields:
            self.scalar(one, item, slot)
        for group in layout.groups:
            self.group(group, item, slot)
        for data in layout.data:
            self.data(data, item)

    def scalar(self, one: FieldLayout, item: str, slot: Slot) -> None:
        line, value = self.source.line, f"{item}.{one.python_name}"
        simple = one.enum is None and not one.optional and not one.is_array and one.max_value is None
        if simple:
            self.fixed(one.code, value)
            return
        name = self.source.fresh("v")
        line(f"{name} = {value}")
        if one.is_array:
            if one.primitive == "uint8":
                line(f"if type({name}) is not bytes: {name} = byte_string({name})")
                line(f"if len({name}) > {one.length}: raise ValueError({name})")
                self.fixed(one.code, name)
            else:
                line(f"if len({name}) != {one.length}: {name} = filled({name}, {one.length})")
                self.fixed(one.code, f"*{name}")
            return
        indent = ""
        if one.optional:
            line(f"if {name} is None: {name} = {one.null}")
            # A value equal to the null would be read as absent. Zero is the one null that people write.
            if one.null != 0:
                line(f"elif {name} == {one.null}: raise ValueError({name})")
            if one.enum is not None:
                line("else:")
                indent = "    "
        if one.enum is not None:
            if one.enum.name == "Bool":
                line(f"{indent}if type({name}) is not bool: truth({name})")
            else:
                enum = self.source.enum(slot, one)
                line(f"{indent}if type({name}) is not {enum}: {name} = member({enum}, {name})")
        if one.max_value is not None:
            line(f"if {name} > {one.max_value}: raise ValueError({name})")
        self.fixed(one.code, name)

    def group(self, group: GroupLayout, item: str, slot: Slot) -> None:
        source = self.source
        slot = (*slot, group.python_name)
        entries, entry = source.fresh("g"), f"e{len(slot)}"
        source.line(f"{entries} = {item}.{group.python_name}")
        source.line(f"if len({entries}) > {MAX_GROUP_COUNT}: raise ValueError(len({entries}))")
        self.fixed("H", str(group.block_length))
        self.fixed("H", f"len({entries})")
        self.flush()
        source.line(f"for {entry} in {entries}:")
        source.depth += 1
        self.block(group, entry, slot)
        self.flush()
        source.depth -= 1

    def data(self, data: DataLayout, item: str) -> None:
        source, name = self.source, self.source.fresh("d")
        value = f"{item}.{data.python_name}"
        if data.ascii:
            errors = ', "surrogateescape"' if data.bytewise else ""
            source.line(f'{name} = {value}.encode("ascii"{errors})')
        else:
            source.line(f"{name} = {value}")
            source.line(f"if type({name}) is not bytes: {name} = byte_string({name})")
        source.line(f"if len({name}) > {data.max_length}: raise ValueError(len({name}))")
        self.fixed("I", f"len({name})")
        self.flush()
        source.line(f"add({name})")


def encoder_source(layout: MessageLayout) -> Source:
    source = Source()
    source.lines.append("def encode(m):")
    encoder = _Encoder(source)
    source.line("try:")
    source.depth += 1
    if layout.groups or layout.data:
        source.line("parts = []")
        source.line("add = parts.append")
    if layout.has_header:
        header = (layout.block_length, layout.template_id, layout.schema_id, layout.version)
        for number in header:
            encoder.fixed("H", str(number))
    encoder.block(layout, "m", ())
    if layout.groups or layout.data:
        encoder.flush()
        source.line('return b"".join(parts)')
    else:
        source.line(f"return {encoder.packed()}")
    source.depth -= 1
    source.line("except FAULTS as cause:")
    source.line("    refuse(m, LAYOUT, cause)")
    return source


# --- decoding -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Decoder:
    source: Source
    message: str

    def block(self, layout: BlockLayout, slot: Slot, path: str, acting: str, kind: str) -> str:
        """Decode a block and what follows it; returns the name of the new object."""
        source = self.source
        table = source.fresh("fields_")
        source.fields[table] = layout
        values: dict[str, str] = {}
        source.line(f"if limit - pos < {acting}:")
        source.line(f"    raise cut_block({self.message}, {_text(path)}, {table}, pos, {acting}, limit)")
        if layout.encoded_fields:
            self.fixed(layout, slot, path, values)
        source.line(f"pos += {acting}")
        for group in layout.groups:
            values[group.python_name] = self.group(group, slot, path)
        for data in layout.data:
            values[data.python_name] = self.data(data, path)
        made = source.fresh("o")
        source.line(f"{made} = new({kind})")
        for name, value in values.items():
            source.line(f"{made}.{name} = {value}")
        return made

    def fixed(self, layout: BlockLayout, slot: Slot, path: str, values: dict[str, str]) -> None:
        source = self.source
        targets: list[str] = []
        codes = ""
        for one in layout.encoded_fields:
            name = source.fresh("v")
            codes += one.code
            if one.is_array and one.primitive != "uint8":
                parts = [f"{name}_{i}" for i in range(one.length)]
                targets += parts
                values[one.python_name] = f"({', '.join(parts)})"
            else:
                targets.append(name)
                values[one.python_name] = name
        source.line(f"{', '.join(targets)}, = {source.struct(codes)}(buf, pos)")
        for one in layout.encoded_fields:
            self.meaning(one, values[one.python_name], slot, path)

    def meaning(self, one: FieldLayout, name: str, slot: Slot, path: str) -> None:
        """Turn a raw integer into None or a member, or find that it is neither."""
        source = self.source
        where = f"{self.message}, {_text(path + one.python_name)}, pos + {one.offset}"
        if one.enum is not None:
            enum = source.enum(slot, one)
            raw = source.fresh("raw")
            source.line(f"{raw} = {name}")
            source.line(f"{name} = {enum}({raw}, MISSING)")
            source.line(f"if {name} is MISSING: raise unknown_member({where}, {one.enum.name!r}, {raw})")
        elif one.optional:
            source.line(f"if {name} == {one.null}: {name} = None")
        if one.max_value is not None:
            source.line(f"if {name} > {one.max_value}: raise too_large({where}, {name}, {one.max_value})")

    def group(self, group: GroupLayout, slot: Slot, path: str) -> str:
        source = self.source
        slot = (*slot, group.python_name)
        depth = len(slot)
        acting, number, entries = f"acting{depth}", f"n{depth}", source.fresh("g")
        where = f"{self.message}, {_text(path + group.python_name)}"
        kind = source.fresh("entry_")
        source.entries[kind] = slot
        source.line(f"if limit - pos < {GROUP_HEADER_BYTES}:")
        source.line(f"    raise cut({where}, pos, {GROUP_HEADER_BYTES}, limit)")
        source.line(f"{acting}, {number} = {source.struct('HH')}(buf, pos)")
        if group.accept_block_length is not None:
            source.line(f"if {acting} == {group.accept_block_length}: {acting} = {group.block_length}")
        if group.block_length:
            source.line(f"if {acting} < {group.block_length}:")
            source.line(f"    raise short_block({where}, pos, {acting}, {group.block_length})")
        source.line(f"pos += {GROUP_HEADER_BYTES}")
        # Before anything is allocated: a count is only believed while the bytes for it are there.
        least = f"{acting} + {group.tail_bytes}"
        source.line(f"if {number} * ({least}) > limit - pos or {number} > {MAX_GROUP_COUNT}:")
        source.line(f"    raise lying_count({where}, pos - 2, {number}, limit - pos)")
        source.line(f"{entries} = []")
        source.line(f"for i{depth} in range({number}):")
        source.depth += 1
        made = self.block(group, slot, f"{path}{group.python_name}[{{i{depth}}}].", acting, kind)
        source.line(f"{entries}.append({made})")
        source.depth -= 1
        return f"tuple({entries})"

    def data(self, data: DataLayout, path: str) -> str:
        source = self.source
        name, size = source.fresh("d"), source.fresh("size")
        where = f"{self.message}, {_text(path + data.python_name)}"
        source.line(f"if limit - pos < {LENGTH_PREFIX_BYTES}:")
        source.line(f"    raise cut({where}, pos, {LENGTH_PREFIX_BYTES}, limit)")
        source.line(f"{size}, = {source.struct('I')}(buf, pos)")
        source.line(f"pos += {LENGTH_PREFIX_BYTES}")
        source.line(f"if {size} > limit - pos or {size} > {data.max_length}:")
        source.line(f"    raise lying_length({where}, pos - 4, {size}, limit - pos, {data.max_length})")
        if not data.ascii:
            source.line(f"{name} = bytes(buf[pos:pos + {size}])")
        elif data.bytewise:
            source.line(f'{name} = str(buf[pos:pos + {size}], "ascii", "surrogateescape") if {size} else ""')
        else:
            source.line(f"try: {name} = str(buf[pos:pos + {size}], 'ascii') if {size} else ''")
            source.line("except UnicodeDecodeError as bad:")
            source.line(f"    raise not_ascii({where}, pos + bad.start, buf[pos + bad.start]) from None")
        source.line(f"pos += {size}")
        return name


def decoder_source(layout: MessageLayout) -> Source:
    source = Source()
    source.lines.append("def decode(buf, pos, limit, acting):")
    made = _Decoder(source, repr(layout.name)).block(layout, (), "", "acting", "entry_root")
    source.entries["entry_root"] = ()
    source.line(f"return {made}, pos")
    return source


def field_table(layout: BlockLayout) -> tuple[tuple[str, int, int], ...]:
    """(name, offset, size) of each field, for the fault that says where the bytes ended."""
    return tuple((f.python_name, f.offset, f.size) for f in layout.encoded_fields)


def _text(path: str) -> str:
    """A path as source text; inside groups it names the index of the entry."""
    return f'f"{path}"' if "{" in path else f'"{path}"'


_MISSING = object()
_ENCODER_NAMES = {
    "FAULTS": (struct.error, TypeError, ValueError, AttributeError, OverflowError),
    "refuse": codec_errors.refuse,
    "member": codec_errors.member,
    "truth": codec_errors.boolean,
    "byte_string": codec_errors.byte_string,
    "filled": codec_errors.filled,
}
_DECODER_NAMES = {
    "MISSING": _MISSING,
    "new": object.__new__,
    "cut": codec_errors.truncated,
    "cut_block": codec_errors.truncated_block,
    "short_block": codec_errors.short_block,
    "lying_count": codec_errors.bad_count,
    "lying_length": codec_errors.bad_length,
    "unknown_member": codec_errors.unknown_member,
    "too_large": codec_errors.too_large,
    "not_ascii": codec_errors.not_ascii,
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
