"""The marker `pipeline.json` of a pipeline: its id, the versions of its tables, and its definition.

It is in the root of the tables, or in the directory of a pipeline with a name.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..errors import PipelineError
from ..recording.table_store import TableStore, exclusive_fault, is_object_store, open_store
from ..runtime.config.spec import TableSpec, spec_of
from ..text import JsonMapping, JsonValue
from . import layout
from .definition import PipelineSettings, parse
from .schemas import VERSIONS

FORMAT: Final = "tensorpool-pipeline"
_FIXED: Final = ("payload",)
"""Settings that cannot change for a root: the columns of its tables depend on them."""


@dataclass(frozen=True, slots=True)
class DefinedAlignment:
    """An alignment of a stored definition."""

    by: str | None
    streams: tuple[int, ...]


@dataclass(slots=True)
class PipelineMarker:
    """The content of the marker."""

    pipeline_id: str
    versions: dict[str, int]
    definition: JsonMapping
    """As the values of a TOML file."""
    tables: list[str]
    """Tables that the root has or will have, of this and of earlier definitions."""
    host: str = ""
    """The host that ran the pipeline last: local recordings of the definition are on it."""

    @property
    def name(self) -> str | None:
        """The name of the pipeline; None without one."""
        found = self.definition.get("name")
        return None if found is None else str(found)

    @property
    def settings(self) -> PipelineSettings:
        """The definition that was last run. Raises InvalidConfig."""
        return parse({"pipeline": self.definition})

    # A report reads any definition, also one that `settings` refuses.

    @property
    def recordings(self) -> list[str]:
        """The recordings of the definition."""
        return [str(root) for root in _items(self.definition, "recordings")]

    def is_here(self, recording: str) -> bool:
        """Whether the recording is read on this host: it is a URI, or a path of this host."""
        return "://" in recording or self.host in ("", socket.gethostname())

    @property
    def streams(self) -> set[int]:
        """The streams of the definition. Empty: all streams."""
        return set(_stream_ids(self.definition))

    @property
    def alignments(self) -> dict[str, DefinedAlignment]:
        """The alignments of the definition, by name."""
        entries = [entry for entry in _items(self.definition, "alignments") if isinstance(entry, Mapping)]
        return {
            str(entry.get("name")): DefinedAlignment(
                by if isinstance(by := entry.get("by"), str) else None, _stream_ids(entry)
            )
            for entry in entries
        }


def _items(table: JsonMapping, key: str) -> Sequence[JsonValue]:
    """The values of a list of a definition."""
    value = table.get(key, ())
    return value if isinstance(value, list | tuple) else ()


def _stream_ids(table: JsonMapping) -> tuple[int, ...]:
    return tuple(int(str(stream)) for stream in _items(table, "streams"))


def read(root: str | os.PathLike[str], name: str | None = None) -> PipelineMarker:
    """The marker of a pipeline. None: that of the pipeline without a name, or of the only one.

    Raises PipelineError if there is none, if there are several, or if its tables have another version.
    """
    store = open_store(root)
    marker = _read(store.url, name)
    if marker is not None:
        return marker
    names = pipeline_names(store)
    if name is None and len(names) == 1:
        return read(root, names[0])
    if not names:
        raise PipelineError(f"{store.url} has no pipeline; tensorpool pipeline run creates one")
    which = "has several pipelines" if name is None else f"has no pipeline {name}"
    raise PipelineError(f"{store.url} {which}; give the definition or the name of one: {', '.join(names)}")


def read_all(root: str | os.PathLike[str]) -> list[PipelineMarker]:
    """The markers of all pipelines of a root, in the order of their names. Raises PipelineError as `read`."""
    return _known(open_store(root)) or [read(root)]


def tables(markers: Iterable[PipelineMarker]) -> list[str]:
    """The names of the tables of several pipelines, in order."""
    return sorted({name for marker in markers for name in marker.tables})


def pipeline_names(store: TableStore) -> list[str]:
    """The names of the pipelines of a root that have one."""
    return sorted({entry.partition("/")[0] for entry in store.names(layout.PIPELINES)})


def _known(root: TableStore) -> list[PipelineMarker]:
    names: list[str | None] = [None, *pipeline_names(root)]
    return [marker for name in names if (marker := _read(root.url, name)) is not None]


def _read(root: str, name: str | None) -> PipelineMarker | None:
    store = open_store(layout.pipeline_directory(root, name))
    text = store.get(layout.MARKER)
    path = f"{store.url}/{layout.MARKER}"
    if text is None:
        return None
    try:
        content = json.loads(text)
    except ValueError as error:
        raise PipelineError(f"{path}: {error}; another program wrote it") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise PipelineError(f"{path} does not belong to a pipeline; give another directory with out = …")
    marker = PipelineMarker(
        content["id"],
        {str(stage): int(version) for stage, version in content["versions"].items()},
        content["definition"],
        list(content.get("tables", [])),
        str(content.get("host", "")),
    )
    for stage, version in marker.versions.items():
        if version > VERSIONS.get(stage, 0):
            raise PipelineError(
                f"{store.url}: its {stage} tables have version {version}, and this tensorpool supports up to "
                f"{VERSIONS.get(stage, 0)}; use the tensorpool that wrote them, or a later one"
            )
        if version < VERSIONS.get(stage, 0):
            raise PipelineError(
                f"{store.url} has tables in the form of an earlier tensorpool; "
                f"tensorpool pipeline migrate {store.url} NEW_ROOT writes them anew"
            )
    return marker


def begin(settings: PipelineSettings, tables: Iterable[str] = (), *, is_new: bool = False) -> PipelineMarker:
    """Writes the marker of the definition's root, with the current definition. Raises PipelineError.

    `is_new`: the caller has written the first files of the root.
    """
    root, store = open_store(settings.out), open_store(layout.pipeline_directory(settings.out, settings.name))
    definition = as_tables(settings)
    # Listed before the marker is looked for: another process may begin the root at this moment.
    present = [] if is_new or is_object_store(settings.out) else root.names("")
    others = [] if is_new else [known for known in _known(root) if known.name != settings.name]
    for other in others:
        _check_fixed(settings.out, other, definition)
        _check_recordings(settings, other)
    if store.get(layout.MARKER) is None:
        # An unfinished marker is left of a kill, before any table was written.
        own = (f"{layout.MARKER}.", layout.WRITERS, layout.PIPELINES)
        if not others and not all(name.startswith(own) for name in present):
            raise PipelineError(
                f"{root.url} contains files of other programs; give another directory with out = …"
            )
        _check_exclusive(store)
        marker = PipelineMarker(
            secrets.token_hex(8), dict(VERSIONS), definition, sorted(tables), socket.gethostname()
        )
        # Of two processes that begin a root one gives it its id: transactions carry the id, and with two of
        # them a decision would be applied twice.
        if store.put_new(layout.MARKER, _content(marker)):
            return marker
    elif is_object_store(settings.out):
        # Unlike a disk, the server behind the name of a store may be another one today.
        _check_exclusive(store)
    existing = read(settings.out, settings.name)
    _check_fixed(settings.out, existing, definition)
    names = sorted({*existing.tables, *tables})
    marker = PipelineMarker(existing.pipeline_id, existing.versions, definition, names, socket.gethostname())
    store.put(layout.MARKER, _content(marker))
    return marker


def _check_exclusive(store: TableStore) -> None:
    """Raises PipelineError if two processes could both decide the same micro-batch."""
    fault = exclusive_fault(store, layout.WRITERS)
    if fault is not None:
        raise PipelineError(
            f"{store.url} is on a store that cannot hold tables: {fault}. Of two processes that decide at "
            "the same moment neither would notice the other, and rows would be lost or twice. Use S3, "
            "Google Cloud Storage, Azure, another store that heeds If-None-Match, or a directory on a disk "
            "with hard links"
        )


def _check_fixed(root: str, existing: PipelineMarker, definition: JsonMapping) -> None:
    for key in _FIXED:
        if existing.definition.get(key) != definition.get(key):
            raise PipelineError(
                f"{root} was created with {key} = {existing.definition.get(key)}, which a root "
                f"keeps, and now has {definition.get(key)}; give another directory with out = …"
            )


def _check_recordings(settings: PipelineSettings, other: PipelineMarker) -> None:
    """Raises PipelineError if another pipeline of the root takes the same frames into the tables."""
    wanted = set(settings.streams)
    for root in settings.recordings:
        is_same = root in other.recordings and other.is_here(root)
        if is_same and not (wanted and other.streams and not wanted & other.streams):
            who = "the pipeline without a name" if other.name is None else f"pipeline {other.name}"
            raise PipelineError(
                f"{who} of {settings.out} reads {root} already, and each frame would be in the tables twice: "
                "give the pipelines different recordings, or different streams with streams = […]"
            )


def _content(marker: PipelineMarker) -> bytes:
    content = {
        "format": FORMAT,
        "id": marker.pipeline_id,
        "versions": marker.versions,
        "tables": marker.tables,
        "host": marker.host,
        "definition": marker.definition,
    }
    return json.dumps(content, indent=2).encode() + b"\n"


def as_tables(settings: PipelineSettings) -> JsonMapping:
    """The definition as the values of a TOML file."""
    return _plain(spec_of(PipelineSettings), settings)


def _plain(spec: TableSpec, settings: Any) -> JsonMapping:
    plain: dict[str, JsonValue] = {}
    for field in spec.fields.values():
        value = getattr(settings, field.attribute)
        if field.nested is not None:
            plain[field.key] = (
                [_plain(field.nested, e) for e in value] if field.is_array else _plain(field.nested, value)
            )
        elif value is not None:
            assert field.kind is not None, "a field is a table or has a kind"
            plain[field.key] = field.kind.write(value)
    return plain
