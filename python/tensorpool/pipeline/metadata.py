"""What producers fields of their streams, by version, for the frames that carry it; and what traces were made
from."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa

_KINDS: Final = ("DataSourceAnnounce", "DataSourceMeta")
_MAX_VERSIONS: Final = 64
_MAX_CHARACTERS: Final = 65_536

Notes = dict[str, dict[str, dict[str, Any]]]
"""Stream → epoch and version, as in `17:3` → kind of message → what it fields. As JSON wants it."""


def merge_metadata(before: Notes, rows: Iterable[dict[str, Any]]) -> Notes:
    """With what `bronze/metadata` has more. Of each stream the last versions are kept."""
    found = {stream: dict(versions) for stream, versions in before.items()}
    for row in rows:
        text, version = row["json"], row["meta_version"]
        if row["kind"] not in _KINDS or text is None or version is None or len(text) > _MAX_CHARACTERS:
            continue
        versions = found.setdefault(str(row["stream_id"]), {})
        key = key_of(row["epoch"], version)
        fields = {**versions.pop(key, {}), row["kind"]: json.loads(text).get("fields", {})}
        versions[key] = fields
        while len(versions) > _MAX_VERSIONS:
            del versions[next(iter(versions))]
    return found


def key_of(epoch: int | None, version: int) -> str:
    return f"{'' if epoch is None else epoch}:{version}"


def column(epochs: list[int], versions: list[int], fields: dict[str, dict[str, Any]]) -> pa.Array:
    """What was fields of each row, as JSON; null where nothing was."""
    texts: list[str] = []
    places: dict[tuple[int, int], int | None] = {}
    for kind in set(zip(epochs, versions, strict=True)):
        about = fields.get(key_of(*kind)) or fields.get(key_of(None, kind[1]))
        places[kind] = None if about is None else len(texts)
        if about is not None:
            texts.append(json.dumps(about, sort_keys=True))
    where = pa.array([places[kind] for kind in zip(epochs, versions, strict=True)], pa.int32())
    return pa.array(texts, pa.string()).take(where)


def parents_of(rows: Iterable[dict[str, Any]]) -> dict[int, list[int]]:
    """Trace → the traces it was made from, as far as it was fields."""
    from ..errors import CodecError
    from ..recording.layout import signed
    from ..sbe import TraceLinkSet, decode

    found: dict[int, list[int]] = {}
    for row in rows:
        if row["kind"] != "TraceLinkSet":
            continue
        try:
            links = decode(row["message"])
        except CodecError:
            continue
        if isinstance(links, TraceLinkSet) and links.trace_id:
            found[signed(links.trace_id)] = [
                signed(parent.trace_id) for parent in links.parents if parent.trace_id
            ]
    return found
