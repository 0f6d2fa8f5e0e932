"""Export of recordings to numpy files, Zarr, Parquet and MCAP.

- npy: one array with all frames. npz: an archive with one array per frame.
- Zarr: a group with the stacked frames, one chunk per frame, and one array per column.
- Parquet: a row per frame, for pandas, DuckDB and other readers of tables.
- MCAP, for viewers: images as Foxglove's RawImage, other tensors in a schema of their own.

Zarr, Parquet and MCAP also have the name, the tags and the attributes of the stream. The packages zarr and
mcap are imported only when they are used.
"""

from __future__ import annotations

import base64
import heapq
import json
import os
import shutil
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from ..attributes.metadata import TAGS_KEY
from ..durable import RETRY_HINT, write_errors
from ..errors import FrameNotRecorded, MissingPackage
from ..text import JsonMapping, JsonValue
from .frame import RecordedFrame
from .recording import Recording, Time
from .selection import COLUMNS, Frames
from .verify import Progress

__all__ = ["FORMATS", "export", "export_mcap", "export_npy", "export_npz", "export_parquet", "export_zarr"]

_MCAP_SEQUENCE_MASK: Final = 0xFFFF_FFFF
"""A sequence number in MCAP has 32 bits."""
FORMATS: Final = ("npy", "npz", "zarr", "parquet", "mcap")
_MAX_VERSIONS: Final = 256
"""Metadata versions of a stream whose attributes are exported; the first ones."""
_MAX_VALUE_BYTES: Final = 4096
"""Larger arrays and bytes among the attributes are named by their size."""
# Names and fields of Foxglove's schemas, which viewers recognise.
_TIME: Final[JsonMapping] = {
    "type": "object",
    "title": "time",
    "properties": {"sec": {"type": "integer"}, "nsec": {"type": "integer"}},
}
_BYTES: Final[JsonMapping] = {"type": "string", "contentEncoding": "base64"}
_IMAGE: Final[JsonMapping] = {
    "title": "foxglove.RawImage",
    "type": "object",
    "properties": {
        "timestamp": _TIME,
        "frame_id": {"type": "string"},
        "width": {"type": "integer"},
        "height": {"type": "integer"},
        "encoding": {"type": "string"},
        "step": {"type": "integer"},
        "data": _BYTES,
    },
}
_TENSOR: Final[JsonMapping] = {
    "title": "tensorpool.Tensor",
    "type": "object",
    "properties": {
        "timestamp": _TIME,
        "seq": {"type": "string"},
        "dtype": {"type": "string"},
        "shape": {"type": "array", "items": {"type": "integer"}},
        "data": _BYTES,
    },
}
_ENCODINGS: Final = {
    ("uint8", 1): "mono8",
    ("uint16", 1): "mono16",
    ("float32", 1): "32FC1",
    ("uint8", 3): "rgb8",
    ("uint8", 4): "rgba8",
}
# A row group of a Parquet file is in memory at once.
_ROWS_AT_ONCE: Final = 64
_NO_FRAMES: Final = "the selection has no frames to export"


def export(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    form: str | None = None,
    stream_id: int | str | None = None,
    epoch: int | None = None,
    seq: tuple[int | None, int | None] | None = None,
    time: tuple[Time | None, Time | None] | None = None,
    progress: Progress | None = None,
) -> int:
    """Writes frames to `target` and returns their number. The format follows from the name or `form`.

    `stream_id` is the id or the name of a stream. `npy` and `zarr` stack the frames of one stream, which must
    have the same type and shape; `npz` and `parquet` take any frames of one stream; `mcap` takes all streams.
    """
    path = Path(target)
    form = form or path.suffix.removeprefix(".")
    if form not in FORMATS:
        raise ValueError(f"cannot export to {form!r}; the formats are {', '.join(FORMATS)}")
    if path.exists():
        raise FileExistsError(f"{path} already exists; choose another name")
    recording = Recording(source)
    if form == "mcap":
        chosen = [stream_id] if stream_id is not None else list(recording.streams)
        stream_ids = [recording.find_stream(each) for each in chosen]
        streams = [recording.frames(each, epoch=epoch, seq=seq, time=time) for each in stream_ids]
        described = zip(stream_ids, streams, strict=True)
        all_facts = [StreamFacts.read(recording, each, frames) for each, frames in described]
        return export_mcap(streams, path, progress, all_facts)
    if stream_id is None:
        if not recording.streams:
            raise ValueError(f"{source} has no frames")
        if len(recording.streams) != 1:
            known = ", ".join(map(recording.label, recording.streams))
            raise ValueError(f"choose a stream; recorded streams: {known}")
        stream_id = recording.streams[0]
    stream_id = recording.find_stream(stream_id)
    frames = recording.frames(stream_id, epoch=epoch, seq=seq, time=time)
    if form in ("npy", "npz"):
        return (export_npy if form == "npy" else export_npz)(frames, path, progress)
    facts = StreamFacts.read(recording, stream_id, frames)
    return (export_zarr if form == "zarr" else export_parquet)(frames, path, progress, facts)


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """What an export says about a stream beside its frames."""

    stream_id: int
    name: str
    tags: tuple[str, ...]
    attributes: dict[str, JsonMapping]
    """By metadata version, which each frame names."""

    @classmethod
    def read(cls, recording: Recording, stream_id: int, frames: Frames) -> Self:
        """The facts of the frames to export."""
        attributes: dict[str, JsonMapping] = {}
        tags: tuple[str, ...] = ()
        for version, metadata in frames.metadata(_MAX_VERSIONS).items():
            found = metadata.get(TAGS_KEY)
            tags = tuple(map(str, found)) if isinstance(found, list) else tags
            attributes[str(version)] = {
                key: _plain_value(metadata[key], metadata.raw(key)) for key in metadata if key != TAGS_KEY
            }
        return cls(stream_id, recording.names.get(stream_id, ""), tags, attributes)

    @property
    def topic(self) -> str:
        """The topic of its messages."""
        return f"/{self.name.strip('/')}" if self.name.strip("/") else f"/stream/{self.stream_id}"

    def to_json(self) -> JsonMapping:
        """The facts with the names that all exports use."""
        return {
            "stream_id": self.stream_id,
            "name": self.name,
            "tags": list(self.tags),
            "attributes": self.attributes,
        }


def _plain_value(value: Any, raw: tuple[str, bytes]) -> JsonValue:
    """An attribute as JSON. Of an array or bytes that are long, format and size."""
    form, data = raw
    if isinstance(value, np.ndarray | bytes) and len(data) > _MAX_VALUE_BYTES:
        return {"format": form, "bytes": len(data)}
    if isinstance(value, np.ndarray):
        elements: JsonValue = value.tolist()
        return elements
    plain: JsonValue = base64.b64encode(value).decode("ascii") if isinstance(value, bytes) else value
    return plain


def _plain_array(frame: RecordedFrame) -> npt.NDArray[Any]:
    """The tensor in a type that other formats have: its own type, else the type that carried it."""
    array = frame.array
    is_known = array.dtype.isbuiltin == 1 and array.dtype.kind in "biufc"
    return array if is_known else frame.carried


def _stackable_frames(frames: Frames, progress: Progress | None) -> Iterator[tuple[int, RecordedFrame]]:
    total = len(frames)
    for number, frame in frames.stackable():
        yield number, frame
        if progress is not None:
            progress(number + 1, total)


def export_mcap(
    streams: Sequence[Frames],
    path: Path,
    progress: Progress | None = None,
    facts: Sequence[StreamFacts] = (),
) -> int:
    """Writes every frame as a JSON message, in order of receipt.

    The topic is the name of the stream, or `/stream/<id>`. `facts` are metadata records `stream:<id>`.
    """
    try:
        from mcap.writer import Writer
    except ImportError:
        raise MissingPackage(
            "exporting to MCAP needs the package mcap: pip install 'aeron-tensorpool[mcap]'"
        ) from None
    total, done = sum(len(frames) for frames in streams), 0
    known = {each.stream_id: each for each in facts}
    topics = Counter(each.topic for each in facts)
    with write_errors(path, RETRY_HINT):
        try:
            with path.open("wb") as file:
                writer: Any = Writer(file)
                writer.start(profile="", library="tensorpool")
                for each in facts:
                    writer.add_metadata(f"stream:{each.stream_id}", _texts(each.to_json()))
                channels: dict[tuple[int, str], int] = {}
                for frame in heapq.merge(*streams, key=lambda frame: frame.receive_time_ns):
                    schema, content = _mcap_message(frame.verify())
                    title = str(schema["title"])
                    key = frame.stream_id, title
                    if key not in channels:
                        schema_id = writer.register_schema(
                            name=title, encoding="jsonschema", data=json.dumps(schema).encode()
                        )
                        stream = known.get(frame.stream_id) or StreamFacts(frame.stream_id, "", (), {})
                        is_shared = topics[stream.topic] > 1
                        channels[key] = writer.register_channel(
                            topic=f"{stream.topic}/{frame.stream_id}" if is_shared else stream.topic,
                            message_encoding="json",
                            schema_id=schema_id,
                            metadata=_texts(stream.to_json()),
                        )
                    writer.add_message(
                        channel_id=channels[key],
                        log_time=frame.receive_time_ns,
                        publish_time=frame.receive_time_ns,
                        sequence=frame.seq & _MCAP_SEQUENCE_MASK,
                        data=json.dumps(content).encode(),
                    )
                    done += 1
                    if progress is not None:
                        progress(done, total)
                writer.finish()
        except BaseException:
            path.unlink(missing_ok=True)
            raise
    return done


def _texts(facts: JsonMapping) -> dict[str, str]:
    """Values of MCAP metadata are texts: what is no text is JSON."""
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in facts.items()}


def _mcap_message(frame: RecordedFrame) -> tuple[JsonMapping, JsonMapping]:
    """JSON schema and content of a frame's message."""
    array = frame.array
    sec, nsec = divmod(frame.receive_time_ns, 1_000_000_000)
    stamp = {"sec": sec, "nsec": nsec}
    data = base64.b64encode(array.tobytes()).decode("ascii")
    channels = array.shape[2] if array.ndim == 3 else 1
    encoding = _ENCODINGS.get((array.dtype.name, channels)) if array.ndim in (2, 3) else None
    if encoding is not None:
        height, width = array.shape[:2]
        return _IMAGE, {
            "timestamp": stamp, "frame_id": f"stream-{frame.stream_id}", "width": width, "height": height,
            "encoding": encoding, "step": width * channels * array.itemsize, "data": data,
        }  # fmt: skip
    return _TENSOR, {
        "timestamp": stamp, "seq": str(frame.seq), "dtype": frame.element_type, "shape": list(array.shape),
        "data": data,
    }  # fmt: skip


def export_npy(frames: Frames, path: Path, progress: Progress | None = None) -> int:
    """Writes one array of shape (frames, *shape). `numpy.load(path, mmap_mode="r")` maps it."""
    first = frames.first()
    count = len(frames)
    with write_errors(path, RETRY_HINT):
        sample = _plain_array(first)
        stack = np.lib.format.open_memmap(path, "w+", sample.dtype, (count, *sample.shape))
        try:
            _reserve_space(path)
            for number, frame in _stackable_frames(frames, progress):
                stack[number] = _plain_array(frame)
            stack.flush()
        except BaseException:
            path.unlink(missing_ok=True)
            raise
    return count


def export_npz(frames: Frames, path: Path, progress: Progress | None = None) -> int:
    """Writes an archive with an array `frame_<number>` per frame, and one array per column."""
    total = len(frames)
    if total == 0:
        raise FrameNotRecorded(_NO_FRAMES)
    with write_errors(path, RETRY_HINT):
        try:
            with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
                for name, column in frames.columns().items():
                    _add_array(archive, name, column)
                for number, frame in enumerate(frames):
                    _add_array(archive, f"frame_{number:08}", _plain_array(frame.verify()))
                    if progress is not None:
                        progress(number + 1, total)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
    return total


def _reserve_space(path: Path) -> None:
    """Allocates the disk space of a mapped file: writing to it on a full disk would be a bus error."""
    with path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


def _add_array(archive: zipfile.ZipFile, name: str, array: npt.NDArray[Any]) -> None:
    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
        np.lib.format.write_array(file, np.ascontiguousarray(array), allow_pickle=False)


def export_parquet(
    frames: Frames, path: Path, progress: Progress | None = None, facts: StreamFacts | None = None
) -> int:
    """Writes a table with a row per frame: its numbers, `dtype`, `shape`, and `tensor`, its bytes in C order.

    The metadata of the schema has the facts of the stream as JSON, under `tensorpool`.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    total, done = len(frames), 0
    if total == 0:
        raise FrameNotRecorded(_NO_FRAMES)
    described = {} if facts is None else {"tensorpool": json.dumps(facts.to_json())}
    with write_errors(path, RETRY_HINT):
        try:
            writer: Any = None
            for start in range(0, total, _ROWS_AT_ONCE):
                part = list(frames[start : start + _ROWS_AT_ONCE])
                numbers = {
                    name: pa.array(np.array([getattr(frame, name) for frame in part], kind))
                    for name, kind in COLUMNS.items()
                }
                batch = pa.table(
                    {
                        **numbers,
                        "dtype": pa.array([frame.element_type for frame in part], pa.string()),
                        "shape": pa.array([frame.shape for frame in part], pa.list_(pa.int64())),
                        "tensor": pa.array([frame.verify().array.tobytes() for frame in part], pa.binary()),
                    }
                ).replace_schema_metadata(described)
                writer = writer or pq.ParquetWriter(path, batch.schema)
                writer.write_table(batch)
                done += len(part)
                if progress is not None:
                    progress(done, total)
            writer.close()
        except BaseException:
            path.unlink(missing_ok=True)
            raise
    return done


def export_zarr(
    frames: Frames, path: Path, progress: Progress | None = None, facts: StreamFacts | None = None
) -> int:
    """Writes a Zarr group (version 3) with `frames` and one array per column; `facts` are its attributes."""
    try:
        import zarr
    except ImportError:
        raise MissingPackage(
            "exporting to Zarr needs the package zarr: pip install 'aeron-tensorpool[zarr]'"
        ) from None
    sample, count = _plain_array(frames.first()), len(frames)
    with write_errors(path, RETRY_HINT):
        try:
            group = zarr.open_group(str(path), mode="w")
            group.attrs.update({} if facts is None else facts.to_json())
            for name, column in frames.columns().items():
                group.create_array(name, data=column)
            stack = group.create_array(
                "frames", shape=(count, *sample.shape), chunks=(1, *(max(size, 1) for size in sample.shape)),
                dtype=sample.dtype,
            )  # fmt: skip
            for number, frame in _stackable_frames(frames, progress):
                stack[number] = _plain_array(frame)
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise
    return count
