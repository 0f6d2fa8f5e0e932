"""The reference pages of the Python API, from docstrings and signatures, native classes too."""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib
import inspect
import re
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from . import source_text


@dataclass(frozen=True, slots=True)
class Page:
    """One page: a module, and which of its public names are in which section."""

    module: str
    opening: str
    sections: dict[str, str]
    """Title of each section, and the names in it; a star stands for the names of no other section."""


_MADE: Final = (
    "This page is made from the docstrings by `python -m tools.reference`; a test keeps it up to date."
)

PAGES: Final = {
    "reference/api.md": Page(
        "tensorpool",
        f"""\
# Python API

Every public name of `tensorpool`. {_MADE}
[Recorders](api-recorder.md), [replays](api-replay.md), [recordings](api-recording.md),
[services](api-service.md) and [pipelines](api-pipeline.md) have pages of their own.
`help()` shows the same texts.

```python
import tensorpool as tp
```
""",
        {
            "Opening": "open Context Event",
            "Producing": "Producer Slot OfferResult OfferManyResult Outcome ProducerLedger",
            "Consuming": "Consumer Frame FrameBatch WholeFrame Progress Phase ConsumerLedger Latency "
            "Metadata",
            "Joining and limiting": "Join JoinedFrames JoinedBatch JoinLedger MergeMap MergeMapJoin Limiter "
            "stage Stage",
            "Finding streams": "discover discover_async DiscoveredStream",
            "Recording and replaying": "record replay",
            "Services": "service Service Property command",
            "Aeron": "MediaDriver StreamIds",
            "Errors": "TensorPoolError *",
        },
    ),
    "reference/api-recording.md": Page(
        "tensorpool.recording",
        f"""\
# Python API: recordings

Every public name of `tensorpool.recording`. {_MADE}
[Record and replay](../how-to/record-and-replay.md) shows them in use.
""",
        {
            "Reading": "open Recording Frames FrameSlice RecordedFrame FrameBatch FrameDataset Gap "
            "RecordingLedger",
            "Checking and copying": "info verify repair cut merge export apply_retention",
            "Other names": "*",
        },
    ),
    "reference/api-recorder.md": Page(
        "tensorpool.recorder.recorder",
        f"""\
# Python API: recorders

What `tp.record` and `ctx.record` return. {_MADE}
[Record and replay](../how-to/record-and-replay.md) shows it in use.
""",
        {"Recorders": "*"},
    ),
    "reference/api-replay.md": Page(
        "tensorpool.replayer",
        f"""\
# Python API: replays

What `tp.replay` and `ctx.replay` return. {_MADE}
[Record and replay](../how-to/record-and-replay.md) shows it in use.
""",
        {"Replays": "replay Replay *"},
    ),
    "reference/api-service.md": Page(
        "tensorpool.service",
        f"""\
# Python API: services

Every public name of `tensorpool.service`. {_MADE}
[Write a service](../tutorial/write-a-service.md) shows them in use.
""",
        {
            "Writing a service": "Service Property command Command Bits FrameRef RunningService ServiceAgent",
            "Using a service": "*",
        },
    ),
    "reference/api-pipeline.md": Page(
        "tensorpool.pipeline",
        f"""\
# Python API: pipelines

Every public name of `tensorpool.pipeline`. {_MADE}
[Pipelines](pipeline.md) describes the settings and the tables.
""",
        {"Pipelines": "*"},
    ),
}
"""The pages by file name."""

_PROTOCOLS: Final = {
    "__iter__": "`for … in`",
    "__aiter__": "`async for … in`",
    "__enter__": "`with`",
    "__aenter__": "`async with`",
    "__await__": "`await`",
    "__len__": "`len()`",
    "__getitem__": "`[…]`",
    "__bool__": "truth",
    "__dlpack__": "DLPack",
    "__array__": "`numpy.asarray()`",
}
_PROPERTIES: Final = (
    property,
    functools.cached_property,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
)
_MAX_NOTE: Final = 240


def render(name: str) -> str:
    """The text of a page. Raises ValueError for a public name without a place."""
    page = PAGES[name]
    module = importlib.import_module(page.module)
    writer = _Writer(known=set(_placed(page, module)) | _methods(page, module))
    parts = [page.opening]
    for title, names in _sections(page, module).items():
        parts.append(f"## {title}\n")
        for public in names:
            parts.extend(writer.member(module, public))
    return "\n".join(parts).rstrip() + "\n"


def _placed(page: Page, module: types.ModuleType) -> list[str]:
    return [name for names in _sections(page, module).values() for name in names]


def _sections(page: Page, module: types.ModuleType) -> dict[str, list[str]]:
    public = sorted(name for name in module.__all__ if not name.startswith("__"))
    named = {name for names in page.sections.values() for name in names.split()} - {"*"}
    if unknown := named - set(public):
        raise ValueError(
            f"{page.module} has no public {', '.join(sorted(unknown))}; change tools/reference/api.py"
        )
    rest = [name for name in public if name not in named]
    sections = {
        title: [item for name in names.split() for item in (rest if name == "*" else [name])]
        for title, names in page.sections.items()
    }
    if "*" not in " ".join(page.sections.values()) and rest:
        raise ValueError(f"no section for {', '.join(rest)}; change tools/reference/api.py")
    if page.module == "tensorpool" and (
        misplaced := [name for name in rest if not _is_error(getattr(module, name))]
    ):
        raise ValueError(f"no section for {', '.join(misplaced)}; change tools/reference/api.py")
    return sections


def _is_error(member: object) -> bool:
    return isinstance(member, type) and issubclass(member, BaseException)


def _methods(page: Page, module: types.ModuleType) -> set[str]:
    return {
        f"{name}.{attribute}"
        for name in _placed(page, module)
        if isinstance(kind := getattr(module, name), type)
        for attribute, _, member in class_members(kind)
        if not isinstance(member, _PROPERTIES)
    }


# What most programs use, before what few do. The others follow as they are defined.
_FIRST: Final = {
    "Producer": (
        "offer", "offer_many", "claim", "wait_for_consumer", "set_metadata", "set_blob", "ledger", "close",
    ),
    "Consumer": (
        "wait_for_producer", "map", "whole", "receive", "poll", "latest", "take", "batches",
        "wait_for_metadata", "ledger", "latency", "close",
    ),
    "Frame": ("array", "valid", "copy"),
}  # fmt: skip


def class_members(kind: type) -> list[tuple[str, type, object]]:
    """Public methods and properties: name, the class that defines it, and the member as that class has it."""
    first = _FIRST.get(kind.__name__, ())
    return sorted(_members(kind), key=lambda item: first.index(item[0]) if item[0] in first else len(first))


def _members(kind: type) -> Iterator[tuple[str, type, object]]:
    seen: set[str] = set()
    for base in kind.__mro__:
        if base.__module__.split(".")[0] != "tensorpool":
            continue
        fields = {attribute.name for attribute in source_text.attributes(base)}
        # The attributes of a native class have another order in each process.
        order = source_text.method_order(base)
        for name, member in sorted(vars(base).items(), key=lambda item: order.get(item[0], len(order))):
            if name.startswith("_") or name in seen or name in fields:
                continue
            seen.add(name)
            if callable(member) or isinstance(member, (*_PROPERTIES, classmethod, staticmethod)):
                yield name, base, member


@dataclass(frozen=True, slots=True)
class _Writer:
    known: set[str]

    def member(self, module: types.ModuleType, name: str) -> Iterator[str]:
        """A public name of a module."""
        value = getattr(module, name)
        # The heading of a lower-case name has that anchor already.
        anchor = "" if name.islower() else f'<a id="{name}"></a>\n'
        yield f"{anchor}### `{name}`\n"
        if isinstance(value, type):
            yield from self._class(value)
        elif inspect.isfunction(value):
            yield from self._function(value.__module__, value.__name__, value)
        elif isinstance(value, types.ModuleType):
            yield from self._module(value)
        else:
            shown = repr(value) if isinstance(value, str | int | float) else _alias(value)
            yield _code(f"{name} = {shown}")
            yield f"{self._linked(source_text.constant_note(name))}\n"

    def _class(self, kind: type) -> Iterator[str]:
        bases = [
            base.__name__ for base in kind.__bases__ if base is not object and base.__name__ != kind.__name__
        ]
        if bases and _is_error(kind):
            yield f"Base: {', '.join(self._linked(f'`{base}`') for base in bases)}.\n"
        yield self._prose(_doc(kind))
        constructor = source_text.function_node(kind, "__init__")
        if constructor is not None and not _is_error(kind) and _is_made_by_users(kind):
            yield _code(source_text.signature(constructor, kind.__name__, _keywords(kind, constructor)))
        yield from self._attributes(kind)
        rows, methods = [], []
        for name, owner, member in class_members(kind):
            text = _doc(member) or source_text.slot_note(kind, name)
            is_short = "\n\n" not in text and len(text) <= _MAX_NOTE
            if isinstance(member, _PROPERTIES) and is_short:
                returns = _returns(owner, name)
                rows.append(f"| `{name}` | {_cell(returns, is_code=True)} | {_cell(self._linked(text))} |")
            else:
                methods.append((name, owner, member))
        if rows:
            yield "\n".join(["| property | type | |", "|---|---|---|", *rows, ""])
        uses = [text for name, text in _PROTOCOLS.items() if _supports(kind, name)]
        if uses and not issubclass(kind, enum.Enum) and not _is_error(kind):
            yield f"Supports {', '.join(uses)}.\n"
        for name, owner, member in methods:
            yield f'<a id="{kind.__name__}.{name}"></a>\n#### `{kind.__name__}.{name}`\n'
            yield from self._function(owner, name, member)

    def _attributes(self, kind: type) -> Iterator[str]:
        found: dict[str, source_text.Attribute] = {}
        for base in reversed(kind.__mro__):
            if base.__module__.split(".")[0] == "tensorpool":
                found |= {attribute.name: attribute for attribute in source_text.attributes(base)}
        is_enum = issubclass(kind, enum.Enum)
        rows = [
            f"| `{item.name}` | {_cell(item.value if is_enum else item.annotation, is_code=True)} "
            f"| {_cell(self._linked(item.note))} |"
            for item in found.values()
        ]
        if rows:
            head = "| member | value | |" if is_enum else "| attribute | type | |"
            yield "\n".join([head, "|---|---|---|", *rows, ""])

    def _function(self, owner: type | str, name: str, member: object) -> Iterator[str]:
        node = source_text.function_node(owner, name)
        if node is not None and isinstance(member, _PROPERTIES):
            returns = _returns(owner, name)
            yield _code(f"{name}: {returns}" if returns else name)
        elif node is not None:
            yield _code(source_text.signature(node, name, _keywords(owner, node)))
        yield self._prose(_doc(member))

    def _module(self, module: types.ModuleType) -> Iterator[str]:
        yield self._prose(_doc(module))
        # `tp.service(…)`: a module that can be called.
        call = vars(type(module)).get("__call__")
        if inspect.isfunction(call):
            yield from self._function(type(module), "__call__", call)

    def _prose(self, text: str) -> str:
        """A docstring as Markdown: indented blocks are Python, and names link to their place on the page."""
        parts: list[str] = []
        for is_code, block in _blocks(text):
            parts.append(_code(block) if is_code else f"{self._linked(block)}\n")
        return "\n".join(parts)

    def _linked(self, text: str) -> str:
        # A lower-case name in the text is mostly a parameter.
        def link(match: re.Match[str]) -> str:
            name = match[1] or match[2] or match[3]
            return f"[`{name}`](#{name})" if name in self.known else match[0]

        return re.sub(
            r"(?<![\[`])`(?:tensorpool\.(\w+)(?:\(\))?|([A-Z]\w*(?:\.\w+)?))`(?!`)|(?<![\w`.\[])([A-Z]\w+[A-Z]\w+)(?![\w`])",
            link,
            text,
        )


def _blocks(text: str) -> Iterator[tuple[bool, str]]:
    """The paragraphs of a docstring, and its indented blocks as code."""
    code: list[str] = []
    prose: list[str] = []
    was_blank, in_list = True, False
    for line in text.splitlines():
        starts_code = line.startswith("    ") and (bool(code) or (was_blank and not in_list))
        if starts_code or (not line and code):
            if prose and "\n".join(prose).strip():
                yield False, "\n".join(prose).strip("\n")
            prose = []
            code.append(line[4:])
        else:
            if code:
                yield True, "\n".join(code).strip("\n")
                code = []
            prose.append(line)
            in_list = line.startswith(("- ", "  ")) or (in_list and not line)
        was_blank = not line
    if code:
        yield True, "\n".join(code).strip("\n")
    elif "\n".join(prose).strip():
        yield False, "\n".join(prose).strip("\n")


def _code(text: str) -> str:
    return f"```python\n{text}\n```\n"


def _cell(text: str, *, is_code: bool = False) -> str:
    flat = " ".join(text.split()).replace("|", "\\|")
    return f"`{flat}`" if is_code and flat else flat


def _doc(member: object) -> str:
    if isinstance(member, classmethod | staticmethod):
        member = member.__func__
    text = getattr(member, "__doc__", None) or ""
    # Docstrings of the native module have no indentation to remove; it would be that of their examples.
    is_native = isinstance(member, types.MethodDescriptorType | types.GetSetDescriptorType) or (
        isinstance(member, type) and member.__module__ == "tensorpool._native"
    )
    return text.strip() if is_native else inspect.cleandoc(text)


def _returns(owner: type | str, name: str) -> str:
    node = source_text.function_node(owner, name)
    return source_text.annotation_of(node) if node is not None else ""


def _supports(kind: type, name: str) -> bool:
    return any(name in vars(base) for base in kind.__mro__ if base.__module__.split(".")[0] == "tensorpool")


def _is_made_by_users(kind: type) -> bool:
    """Whether the constructor is documented; other objects come from methods."""
    return bool((vars(kind)["__init__"].__doc__ or "").strip()) and "__dataclass_fields__" not in vars(kind)


def _alias(value: object) -> str:
    return re.sub(r"[\w.]+\.(?=\w)", "", str(value))


def _keywords(owner: type | str, node: source_text.Function) -> list[str]:
    """The keywords of a function that takes them as a TypedDict (`**options: Unpack[Options]`)."""
    name = source_text.keyword_options(node)
    if name is None:
        return []
    kind = getattr(importlib.import_module(owner if isinstance(owner, str) else owner.__module__), name, None)
    if not isinstance(kind, type):
        # Imported for type checkers only.
        kind = source_text.find_class(name)
    bases = (
        (*reversed(types.get_original_bases(kind)), kind) if hasattr(types, "get_original_bases") else (kind,)
    )
    defaults = _defaults(kind)
    return [
        f"{item.name}: {item.annotation} = {defaults.get(item.name, '...')}"
        for base in bases
        if isinstance(base, type) and base.__module__.startswith("tensorpool")
        for item in source_text.attributes(base)
    ]


def _defaults(keywords: type | None) -> dict[str, str]:
    """The defaults of `SomeKeywords`, which the dataclass `SomeOptions` beside it has."""
    if keywords is None:
        return {}
    name = keywords.__name__.removesuffix("Keywords") + "Options"
    options = getattr(importlib.import_module(keywords.__module__), name, None)
    if not isinstance(options, type) or not dataclasses.is_dataclass(options):
        return {}
    return {
        item.name: repr(item.default if factory is dataclasses.MISSING else factory())
        for item in dataclasses.fields(options)
        if (factory := item.default_factory) is not dataclasses.MISSING
        or item.default is not dataclasses.MISSING
    }
