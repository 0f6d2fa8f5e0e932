"""What recordings say about frames beside the frames: metadata by version, clock anchors, traces.

Anchors relate the recorder's time of day to the monotonic clock of producers, for latencies. Lineage depth is
the number of steps from a source to a frame: sources have depth 1, and a frame with the trace of its parent
is one step deeper than the parent. A frame made from several frames has a new trace, one step deeper than the
deepest of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..recording import Recording
from ..recording.layout import SEALED, TABLES_DIR
from ..recording.storage import is_uri
from ..recording.tables import read_batches
from ..text import JsonMapping

_KINDS: Final = ("DataSourceAnnounce", "DataSourceMeta")
_MAX_VERSIONS: Final = 64
_MAX_CHARACTERS: Final = 65_536

Versions = dict[str, JsonMapping]
"""Epoch and version, as in `17:3` → kind of message → its fields, whatever the producer has announced."""
StreamMetadata = dict[int, Versions]
"""Stream → its metadata by version."""


class RecordingTables:
    """The small tables of a recording, on a disk or in a store, read from where the last read has ended."""

    def __init__(self, recording: str) -> None:
        self.recording = recording
        self._remote: Recording | None = None

    def refresh(self) -> None:
        """Gets the present tables of a recording in a store. Those on a disk are always present."""
        if not is_uri(self.recording):
            return
        if self._remote is None:
            self._remote = Recording(self.recording)
        else:
            self._remote.refresh()
        if self._remote.remote is not None:
            self._remote.remote.require_tables("metadata", "anchors")

    def new_batches(self, name: str, offsets: dict[str, int]) -> Iterator[pa.RecordBatch]:
        """The batches of a table behind `offsets` (file → bytes that are read), which it advances."""
        root = Path(self.recording) if self._remote is None else self._remote.root
        directory = root / TABLES_DIR / name
        for path in sorted(directory.glob(f"*{SEALED}")) if directory.is_dir() else ():
            key = f"{self.recording}/{TABLES_DIR}/{name}/{path.name}"
            batches, offsets[key] = read_batches(path, offsets.get(key, 0))
            yield from batches

    def close(self) -> None:
        """Releases a recording in a store."""
        if self._remote is not None:
            self._remote.close()
            self._remote = None


class MetadataMessage(NamedTuple):
    """A row of `bronze/metadata`."""

    stream_id: int
    epoch: int | None
    meta_version: int | None
    kind: str | None
    message: bytes | None
    json: str | None


def messages_of(rows: pa.Table | pa.RecordBatch) -> list[MetadataMessage]:
    """The rows of `bronze/metadata`, or of the table `metadata` of a recording."""
    columns = (rows[name].to_pylist() for name in MetadataMessage._fields)
    return [MetadataMessage(*values) for values in zip(*columns, strict=True)]


def merge_metadata(before: StreamMetadata, rows: Iterable[MetadataMessage]) -> StreamMetadata:
    """`before` with new rows. Only the latest versions of each stream are kept."""
    merged = {stream: dict(versions) for stream, versions in before.items()}
    for row in rows:
        text, version = row.json, row.meta_version
        if row.kind not in _KINDS or text is None or version is None or len(text) > _MAX_CHARACTERS:
            continue
        versions = merged.setdefault(row.stream_id, {})
        key = key_of(row.epoch, version)
        fields = {**versions.pop(key, {}), row.kind: json.loads(text).get("fields", {})}
        versions[key] = fields
        while len(versions) > _MAX_VERSIONS:
            del versions[next(iter(versions))]
    return merged


def key_of(epoch: int | None, version: int) -> str:
    """The key of a version in `Versions`."""
    return f"{'' if epoch is None else epoch}:{version}"


def column(epochs: list[int], versions: list[int], fields: Mapping[str, JsonMapping]) -> pa.Array:
    """The metadata of each row, as JSON; null for a row whose version is unknown."""
    texts: list[str] = []
    positions: dict[tuple[int, int], int | None] = {}
    for epoch, version in set(zip(epochs, versions, strict=True)):
        content = fields.get(key_of(epoch, version)) or fields.get(key_of(None, version))
        positions[epoch, version] = None if content is None else len(texts)
        if content is not None:
            texts.append(json.dumps(content, sort_keys=True))
    where = pa.array([positions[key] for key in zip(epochs, versions, strict=True)], pa.int32())
    return pa.array(texts, pa.string()).take(where)


LINKS: Final = "TraceLinkSet"
"""The kind of a message that names the parents of a trace."""


def parents_of(messages: Iterable[bytes | None]) -> dict[int, list[int]]:
    """Trace → its parent traces, by messages of the kind `LINKS`."""
    from ..errors import CodecError
    from ..recording.layout import signed
    from ..sbe import TraceLinkSet, decode

    parents_by_trace: dict[int, list[int]] = {}
    for message in messages:
        try:
            links = decode(message or b"")
        except CodecError:
            continue
        if isinstance(links, TraceLinkSet) and links.trace_id:
            parents_by_trace[signed(links.trace_id)] = [
                signed(parent.trace_id) for parent in links.parents if parent.trace_id
            ]
    return parents_by_trace


# --- lineage

_MAX_TRACES: Final = 5_000
Traces = dict[int, dict[int, int]]
"""Trace → stream → depth."""


class FrameTrace(NamedTuple):
    """A frame with a trace."""

    trace_id: int
    stream_id: int
    timestamp_ns: int


def traced_frames(rows: pa.Table) -> list[FrameTrace]:
    """The frames of some rows, all of which have a trace."""
    columns = (rows[name].to_pylist() for name in FrameTrace._fields)
    return [FrameTrace(*values) for values in zip(*columns, strict=True)]


def trace_depths(
    frames: list[FrameTrace], parents: Mapping[int, list[int]], known: Traces
) -> tuple[list[int], Traces]:
    """The depth of each frame, and the known traces for the next call. `known`: those of the last call."""
    traces = {trace: dict(streams) for trace, streams in known.items()}
    depths = [0] * len(frames)
    for number in sorted(range(len(frames)), key=lambda place: frames[place].timestamp_ns):
        trace, stream, _ = frames[number]
        streams = traces.setdefault(trace, {})
        if stream not in streams:
            above = [max(traces[parent].values()) for parent in parents.get(trace, ()) if traces.get(parent)]
            streams[stream] = max([*streams.values(), *above], default=0) + 1
        depths[number] = streams[stream]
    kept = list(traces)[-_MAX_TRACES:]
    return depths, {trace: traces[trace] for trace in kept}


# --- latency

_MAX_NS: Final = 3_600_000_000_000
"""A longer time is not a latency: the producer has the clock of another host."""


class AnchorReader:
    """The anchors of a recording, as of the last `refresh`."""

    def __init__(self, tables: RecordingTables) -> None:
        self._tables = tables
        self._offsets: dict[str, int] = {}
        self._wall = np.empty(0, np.int64)
        self._offset = np.empty(0, np.int64)

    def refresh(self) -> None:
        """Reads the new anchors."""
        wall, offset = [self._wall], [self._offset]
        for batch in self._tables.new_batches("anchors", self._offsets):
            wall.append(batch["wall_ns"].to_numpy())
            offset.append(wall[-1] - batch["monotonic_ns"].to_numpy())
        if len(wall) > 1:
            joined = np.concatenate(wall)
            order = np.argsort(joined, kind="stable")
            self._wall, self._offset = joined[order], np.concatenate(offset)[order]

    def between(self, first_ns: int, last_ns: int) -> list[list[int]]:
        """The anchors for receive times in the range: (time of day, time of day minus monotonic time)."""
        low = max(int(np.searchsorted(self._wall, first_ns, "right")) - 1, 0)
        high = max(int(np.searchsorted(self._wall, last_ns, "right")), low + 1)
        return [
            [int(at), int(by)] for at, by in zip(self._wall[low:high], self._offset[low:high], strict=True)
        ]


def latencies(
    sent_ns: npt.NDArray[np.int64], received_ns: npt.NDArray[np.int64], anchors: list[list[int]]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Nanoseconds from publication (monotonic) to receipt (time of day), and which of them are known."""
    if not anchors:
        return np.zeros(len(sent_ns), np.int64), np.zeros(len(sent_ns), np.bool_)
    wall = np.array([at for at, _ in anchors], np.int64)
    offset = np.array([by for _, by in anchors], np.int64)
    at = np.maximum(np.searchsorted(wall, received_ns, "right") - 1, 0)
    latency_ns = received_ns - offset[at] - sent_ns
    return latency_ns, (latency_ns >= 0) & (latency_ns <= _MAX_NS) & (sent_ns > 0)
