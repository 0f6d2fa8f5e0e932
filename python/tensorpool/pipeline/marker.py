"""The marker `pipeline.json` of a root: the pipeline's id, table versions and definition."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from ..errors import PipelineError
from ..recording.table_store import is_object_store, open_store
from ..runtime.config.spec import TableSpec, spec_of
from ..text import JsonObject
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
    definition: JsonObject
    """As the values of a TOML file."""
    tables: list[str]
    """Tables that the root has or will have, of this and of earlier definitions."""

    @property
    def settings(self) -> PipelineSettings:
        """The definition that was last run. Raises InvalidConfig."""
        return parse({"pipeline": self.definition})

    # A report reads any definition, also one that `settings` refuses.

    @property
    def recordings(self) -> list[str]:
        """The recordings of the definition."""
        return [str(root) for root in self.definition.get("recordings", ())]

    @property
    def streams(self) -> set[int]:
        """The streams of the definition. Empty: all streams."""
        return {int(stream) for stream in self.definition.get("streams", ())}

    @property
    def alignments(self) -> dict[str, DefinedAlignment]:
        """The alignments of the definition, by name."""
        entries = [entry for entry in self.definition.get("alignments", ()) if isinstance(entry, dict)]
        return {
            str(entry.get("name")): DefinedAlignment(
                entry.get("by"), tuple(map(int, entry.get("streams", ())))
            )
            for entry in entries
        }


def read(root: str | os.PathLike[str]) -> PipelineMarker:
    """The marker of a root. Raises PipelineError if there is none, or if its tables have another version."""
    store = open_store(root)
    text = store.get(layout.MARKER)
    path = f"{store.url}/{layout.MARKER}"
    if text is None:
        raise PipelineError(f"{store.url} has no pipeline; tensorpool pipeline run creates one")
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
    )
    for stage, version in marker.versions.items():
        if version > VERSIONS.get(stage, 0):
            raise PipelineError(
                f"{store.url}: its {stage} tables have version {version}, and this tensorpool supports up to "
                f"{VERSIONS.get(stage, 0)}; use the tensorpool that wrote them, or a later one"
            )
        if version < VERSIONS.get(stage, 0):
            raise PipelineError(
                f"{store.url} has tables of an earlier tensorpool, which were plain files and are Delta "
                f"tables now; tensorpool pipeline migrate {store.url} NEW_ROOT writes them as Delta tables"
            )
    return marker


def begin(settings: PipelineSettings, tables: Iterable[str] = (), *, is_new: bool = False) -> PipelineMarker:
    """Writes the marker of the definition's root, with the current definition. Raises PipelineError.

    `is_new`: the caller has written the first files of the root.
    """
    store = open_store(settings.out)
    definition = as_tables(settings)
    # Listed before the marker is looked for: another process may begin the root at this moment.
    present = [] if is_new or is_object_store(settings.out) else store.names("")
    if store.get(layout.MARKER) is None:
        # An unfinished marker is left of a kill, before any table was written.
        if not all(name.startswith((f"{layout.MARKER}.", layout.WRITERS)) for name in present):
            raise PipelineError(
                f"{store.url} contains files of other programs; give another directory with out = …"
            )
        marker = PipelineMarker(secrets.token_hex(8), dict(VERSIONS), definition, sorted(tables))
        # Of two processes that begin a root one gives it its id: transactions carry the id, and with two of
        # them a decision would be applied twice.
        if store.put_new(layout.MARKER, _content(marker)):
            return marker
    existing = read(settings.out)
    for key in _FIXED:
        if existing.definition.get(key) != definition.get(key):
            raise PipelineError(
                f"{settings.out} was created with {key} = {existing.definition.get(key)}, which a root "
                f"keeps, and now has {definition.get(key)}; give another directory with out = …"
            )
    names = sorted({*existing.tables, *tables})
    marker = PipelineMarker(existing.pipeline_id, existing.versions, definition, names)
    store.put(layout.MARKER, _content(marker))
    return marker


def _content(marker: PipelineMarker) -> bytes:
    content = {
        "format": FORMAT,
        "id": marker.pipeline_id,
        "versions": marker.versions,
        "tables": marker.tables,
        "definition": marker.definition,
    }
    return json.dumps(content, indent=2).encode() + b"\n"


def as_tables(settings: PipelineSettings) -> JsonObject:
    """The definition as the values of a TOML file."""
    return _plain(spec_of(PipelineSettings), settings)


def _plain(spec: TableSpec, settings: Any) -> JsonObject:
    plain: JsonObject = {}
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
