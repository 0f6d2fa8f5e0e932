"""The code generator of encoders and decoders: layout -> source text -> compiled functions.

Compiling takes about a millisecond per message, so it happens at the first use of a class, not at import.

The generated functions do not read layouts at run time: fixed blocks are `struct.Struct` calls, groups are
plain loops, and a check of the remaining bytes precedes every read. Names in the source: `m` is the message,
`e<n>` the group entry at depth n; `buf`, `pos` and `limit` are the buffer, the next byte and the end. Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeAlias, get_args, get_type_hints

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

Namespace: TypeAlias = dict[str, object]
"""The global names of generated code."""

GroupPath = tuple[str, ...]
"""The attributes from the message to a group: ("results", "payload_pools")."""


@dataclass(slots=True)
class Source:
    """The source lines of a function, and the values that they use by name."""

    lines: list[str] = field(default_factory=list)
    structs: dict[str, str] = field(default_factory=dict)
    enums: dict[str, tuple[GroupPath, FieldLayout]] = field(default_factory=dict)
    entries: dict[str, GroupPath] = field(default_factory=dict)
    fields: dict[str, BlockLayout] = field(default_factory=dict)
    depth: int = 1
    _numbers: count[int] = field(default_factory=count)

    def line(self, text: str) -> None:
        """Adds a line at the current indentation."""
        self.lines.append("    " * self.depth + text)

    def fresh(self, prefix: str) -> str:
        """A new name."""
        return f"{prefix}{next(self._numbers)}"

    def struct(self, codes: str) -> str:
        """The name of the `struct.Struct` method with these codes."""
        for name, known in self.structs.items():
            if known == codes:
                return name
        name = self.fresh("struct_")
        self.structs[name] = codes
        return name

    def enum(self, group_path: GroupPath, of: FieldLayout) -> str:
        """The name of a field's enum."""
        name = self.fresh("enum_")
        self.enums[name] = (group_path, of)
        return name

    def text(self) -> str:
        """The whole source text."""
        return "\n".join(self.lines) + "\n"


# --- encoding -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Encoder:
    """Generates an encoder. Collects adjacent fixed values, so that each run is one `Struct.pack`."""

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

    def block(self, layout: BlockLayout, item: str, group_path: GroupPath) -> None:
        for field_layout in layout.encoded_fields:
            self.scalar(field_layout, item, group_path)
        for group in layout.groups:
            self.group(group, item, group_path)
        for data in layout.data:
            self.data(data, item)

    def scalar(self, field_layout: FieldLayout, item: str, group_path: GroupPath) -> None:
        line, value = self.source.line, f"{item}.{field_layout.python_name}"
        simple = (
            field_layout.enum is None
            and not field_layout.optional
            and not field_layout.is_array
            and field_layout.max_value is None
        )
        if simple:
            self.fixed(field_layout.code, value)
            return
        name = self.source.fresh("v")
        line(f"{name} = {value}")
        if field_layout.is_array:
            if field_layout.primitive == "uint8":
                line(f"if type({name}) is not bytes: {name} = byte_string({name})")
                line(f"if len({name}) > {field_layout.length}: raise ValueError({name})")
                self.fixed(field_layout.code, name)
            else:
                line(
                    f"if len({name}) != {field_layout.length}: {name} = filled({name}, {field_layout.length})"
                )
                self.fixed(field_layout.code, f"*{name}")
            return
        indent = ""
        if field_layout.optional:
            line(f"if {name} is None: {name} = {field_layout.null}")
            # A value equal to the null would be decoded as absent. Where the null is 0, both mean the same.
            if field_layout.null != 0:
                line(f"elif {name} == {field_layout.null}: raise ValueError({name})")
            if field_layout.enum is not None:
                line("else:")
                indent = "    "
        if field_layout.enum is not None:
            if field_layout.enum.name == "Bool":
                line(f"{indent}if type({name}) is not bool: boolean({name})")
            else:
                enum = self.source.enum(group_path, field_layout)
                line(f"{indent}if type({name}) is not {enum}: {name} = member({enum}, {name})")
        if field_layout.max_value is not None:
            line(f"if {name} > {field_layout.max_value}: raise ValueError({name})")
        self.fixed(field_layout.code, name)

    def group(self, group: GroupLayout, item: str, group_path: GroupPath) -> None:
        source = self.source
        group_path = (*group_path, group.python_name)
        entries, entry = source.fresh("g"), f"e{len(group_path)}"
        source.line(f"{entries} = {item}.{group.python_name}")
        source.line(f"if len({entries}) > {MAX_GROUP_COUNT}: raise ValueError(len({entries}))")
        self.fixed("H", str(group.block_length))
        self.fixed("H", f"len({entries})")
        self.flush()
        source.line(f"for {entry} in {entries}:")
        source.depth += 1
        self.block(group, entry, group_path)
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
    """The source of `encode(m)`."""
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
    """Generates a decoder."""

    source: Source
    message: str

    def block(self, layout: BlockLayout, group_path: GroupPath, path: str, acting: str, kind: str) -> str:
        """Adds the lines that decode a block, its groups and its var-data; returns the name of the object."""
        source = self.source
        table = source.fresh("fields_")
        source.fields[table] = layout
        values: dict[str, str] = {}
        source.line(f"if limit - pos < {acting}:")
        source.line(
            f"    raise truncated_block({self.message}, {_text(path)}, {table}, pos, {acting}, limit)"
        )
        if layout.encoded_fields:
            self.fixed(layout, group_path, path, values)
        source.line(f"pos += {acting}")
        for group in layout.groups:
            values[group.python_name] = self.group(group, group_path, path)
        for data in layout.data:
            values[data.python_name] = self.data(data, path)
        decoded = source.fresh("o")
        source.line(f"{decoded} = new({kind})")
        for name, value in values.items():
            source.line(f"{decoded}.{name} = {value}")
        return decoded

    def fixed(self, layout: BlockLayout, group_path: GroupPath, path: str, values: dict[str, str]) -> None:
        source = self.source
        targets: list[str] = []
        codes = ""
        for field_layout in layout.encoded_fields:
            name = source.fresh("v")
            codes += field_layout.code
            if field_layout.is_array and field_layout.primitive != "uint8":
                parts = [f"{name}_{i}" for i in range(field_layout.length)]
                targets += parts
                values[field_layout.python_name] = f"({', '.join(parts)})"
            else:
                targets.append(name)
                values[field_layout.python_name] = name
        source.line(f"{', '.join(targets)}, = {source.struct(codes)}(buf, pos)")
        for field_layout in layout.encoded_fields:
            self.meaning(field_layout, values[field_layout.python_name], group_path, path)

    def meaning(self, field_layout: FieldLayout, name: str, group_path: GroupPath, path: str) -> None:
        """Adds the lines that turn a raw integer into None or an enum member, or refuse it."""
        source = self.source
        where = f"{self.message}, {_text(path + field_layout.python_name)}, pos + {field_layout.offset}"
        if field_layout.enum is not None:
            enum = source.enum(group_path, field_layout)
            raw = source.fresh("raw")
            source.line(f"{raw} = {name}")
            source.line(f"{name} = {enum}({raw}, MISSING)")
            source.line(
                f"if {name} is MISSING: raise unknown_member({where}, {field_layout.enum.name!r}, {raw})"
            )
        elif field_layout.optional:
            source.line(f"if {name} == {field_layout.null}: {name} = None")
        if (maximum := field_layout.max_value) is not None:
            source.line(f"if {name} > {maximum}: raise too_large({where}, {name}, {maximum})")

    def group(self, group: GroupLayout, group_path: GroupPath, path: str) -> str:
        source = self.source
        group_path = (*group_path, group.python_name)
        depth = len(group_path)
        acting, number, entries = f"acting{depth}", f"n{depth}", source.fresh("g")
        where = f"{self.message}, {_text(path + group.python_name)}"
        kind = source.fresh("entry_")
        source.entries[kind] = group_path
        source.line(f"if limit - pos < {GROUP_HEADER_BYTES}:")
        source.line(f"    raise truncated({where}, pos, {GROUP_HEADER_BYTES}, limit)")
        source.line(f"{acting}, {number} = {source.struct('HH')}(buf, pos)")
        if group.accept_block_length is not None:
            source.line(f"if {acting} == {group.accept_block_length}: {acting} = {group.block_length}")
        if group.block_length:
            source.line(f"if {acting} < {group.block_length}:")
            source.line(f"    raise short_block({where}, pos, {acting}, {group.block_length})")
        source.line(f"pos += {GROUP_HEADER_BYTES}")
        # The count is checked against the remaining bytes before anything is allocated for it.
        entry_bytes = f"{acting} + {group.tail_bytes}"
        source.line(f"if {number} * ({entry_bytes}) > limit - pos or {number} > {MAX_GROUP_COUNT}:")
        source.line(f"    raise bad_count({where}, pos - 2, {number}, limit - pos)")
        source.line(f"{entries} = []")
        source.line(f"for i{depth} in range({number}):")
        source.depth += 1
        decoded = self.block(group, group_path, f"{path}{group.python_name}[{{i{depth}}}].", acting, kind)
        source.line(f"{entries}.append({decoded})")
        source.depth -= 1
        return f"tuple({entries})"

    def data(self, data: DataLayout, path: str) -> str:
        source = self.source
        name, size = source.fresh("d"), source.fresh("size")
        where = f"{self.message}, {_text(path + data.python_name)}"
        source.line(f"if limit - pos < {LENGTH_PREFIX_BYTES}:")
        source.line(f"    raise truncated({where}, pos, {LENGTH_PREFIX_BYTES}, limit)")
        source.line(f"{size}, = {source.struct('I')}(buf, pos)")
        source.line(f"pos += {LENGTH_PREFIX_BYTES}")
        source.line(f"if {size} > limit - pos or {size} > {data.max_length}:")
        source.line(f"    raise bad_length({where}, pos - 4, {size}, limit - pos, {data.max_length})")
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
    """The source of `decode(buf, pos, limit, acting)`."""
    source = Source()
    source.lines.append("def decode(buf, pos, limit, acting):")
    decoded = _Decoder(source, repr(layout.name)).block(layout, (), "", "acting", "entry_root")
    source.entries["entry_root"] = ()
    source.line(f"return {decoded}, pos")
    return source


def field_table(layout: BlockLayout) -> tuple[tuple[str, int, int], ...]:
    """(name, offset, size) of each field, for the error that names the first incomplete field."""
    return tuple((f.python_name, f.offset, f.size) for f in layout.encoded_fields)


def _text(path: str) -> str:
    """A path as source text; inside groups it is an f-string with the index of the entry."""
    return f'f"{path}"' if "{" in path else f'"{path}"'


_MISSING = object()
_ENCODER_NAMES = {
    "FAULTS": (struct.error, TypeError, ValueError, AttributeError, OverflowError),
    "refuse": codec_errors.refuse,
    "member": codec_errors.member,
    "boolean": codec_errors.boolean,
    "byte_string": codec_errors.byte_string,
    "filled": codec_errors.filled,
}
_DECODER_NAMES = {
    "MISSING": _MISSING,
    "new": object.__new__,
    "truncated": codec_errors.truncated,
    "truncated_block": codec_errors.truncated_block,
    "short_block": codec_errors.short_block,
    "bad_count": codec_errors.bad_count,
    "bad_length": codec_errors.bad_length,
    "unknown_member": codec_errors.unknown_member,
    "too_large": codec_errors.too_large,
    "not_ascii": codec_errors.not_ascii,
}


@dataclass(frozen=True, slots=True)
class Codec:
    """The compiled functions of a message. `decode` takes (buffer, block start, end, acting block length)."""

    layout: MessageLayout
    encode: Callable[[Any], bytes]
    decode: Callable[[Any, int, int, int], tuple[Any, int]]


def compile_codec(kind: type, layout: MessageLayout) -> Codec:
    """Compiles the codec of a message class."""
    encoder, decoder = encoder_source(layout), decoder_source(layout)
    names: Namespace = {**_ENCODER_NAMES, "LAYOUT": layout}
    for name, codes in encoder.structs.items():
        names[name] = struct.Struct(f"<{codes}").pack
    for name, (group_path, field_layout) in encoder.enums.items():
        names[name] = value_class(entry_class(kind, group_path), field_layout.python_name)
    encode = _run(encoder, "encode", layout, names)

    names = dict(_DECODER_NAMES)
    for name, codes in decoder.structs.items():
        names[name] = struct.Struct(f"<{codes}").unpack_from
    for name, (group_path, field_layout) in decoder.enums.items():
        names[name] = _meanings(entry_class(kind, group_path), field_layout).get
    for name, group_path in decoder.entries.items():
        names[name] = entry_class(kind, group_path)
    for name, block in decoder.fields.items():
        names[name] = field_table(block)
    return Codec(layout, encode, _run(decoder, "decode", layout, names))


def _run(source: Source, function: str, layout: MessageLayout, names: Namespace) -> Any:
    # The source is generated from the package's schema files, never from received bytes.
    exec(compile(source.text(), f"<sbe {layout.schema} {layout.name} {function}>", "exec"), names)
    return names[function]


def _meanings(owner: type, field_layout: FieldLayout) -> dict[int, Any]:
    """Raw value -> enum member; the null of an optional enum -> None."""
    enum = value_class(owner, field_layout.python_name)
    known: dict[int, Any] = {0: False, 1: True} if enum is bool else {int(m): m for m in enum}
    if field_layout.null is not None:
        known[field_layout.null] = None
    return known


def entry_class(kind: type, group_path: GroupPath) -> type:
    """The class of a group's entries, from the annotation `tuple[Entry, ...]`."""
    for attribute in group_path:
        kind = get_args(get_type_hints(kind)[attribute])[0]
    return kind


def value_class(owner: type, attribute: str) -> Any:
    """The class of a field's values, from the annotation `Value` or `Value | None`."""
    hint = get_type_hints(owner)[attribute]
    return next((arg for arg in get_args(hint) if arg is not type(None)), hint)
