"""Export of recordings to numpy files, Zarr and MCAP.

- npy: one array with all frames. npz: an archive with one array per frame.
- Zarr: a group with the stacked frames, one chunk per frame, and one array per column.
- MCAP, for viewers: images as Foxglove's RawImage, other tensors in a schema of their own.

The packages zarr and mcap are imported only when they are used.
"""

from __future__ import annotations

import base64
import heapq
import json
import os
import shutil
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ..durable import RETRY_HINT, write_errors
from ..errors import FrameNotRecorded, InvalidFrames, MissingPackage
from ..text import JsonObject
from .frame import RecordedFrame
from .recording import Recording, Time
from .selection import Frames
from .verify import Progress

__all__ = ["FORMATS", "export", "export_mcap", "export_npy", "export_npz", "export_zarr"]

FORMATS: Final = ("npy", "npz", "zarr", "mcap")
COLUMNS: Final = {
    "epoch": np.uint64,
    "seq": np.uint64,
    "timestamp_ns": np.uint64,
    "receive_time_ns": np.int64,
    "meta_version": np.int64,
}


# Names and fields of Foxglove's schemas, which viewers recognise.
_TIME: Final = {
    "type": "object",
    "title": "time",
    "properties": {"sec": {"type": "integer"}, "nsec": {"type": "integer"}},
}
_BYTES: Final = {"type": "string", "contentEncoding": "base64"}
_IMAGE: Final = {
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
_TENSOR: Final = {
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
_NO_FRAMES: Final = "the selection has no frames to export"


def export(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    form: str | None = None,
    stream_id: int | None = None,
    epoch: int | None = None,
    seq: tuple[int | None, int | None] | None = None,
    time: tuple[Time | None, Time | None] | None = None,
    progress: Progress | None = None,
) -> int:
    """Writes frames to `target` and returns their number. The format follows from the name or `form`.

    `npy` and `zarr` stack the frames of one stream, which must have the same type and shape; `npz` takes any
    frames of one stream; `mcap` takes all streams.
    """
    path = Path(target)
    form = form or path.suffix.removeprefix(".")
    if form not in FORMATS:
        raise ValueError(f"cannot export to {form!r}; the formats are {', '.join(FORMATS)}")
    if path.exists():
        raise FileExistsError(f"{path} already exists; choose another name")
    recording = Recording(source)
    if form == "mcap":
        stream_ids = [stream_id] if stream_id is not None else list(recording.streams)
        streams = [recording.frames(each, epoch=epoch, seq=seq, time=time) for each in stream_ids]
        return export_mcap(streams, path, progress)
    if stream_id is None:
        if not recording.streams:
            raise ValueError(f"{source} has no frames")
        if len(recording.streams) != 1:
            known = ", ".join(map(str, recording.streams))
            raise ValueError(f"choose a stream; recorded streams: {known}")
        stream_id = recording.streams[0]
    frames = recording.frames(stream_id, epoch=epoch, seq=seq, time=time)
    writers = {"npy": export_npy, "npz": export_npz, "zarr": export_zarr}
    return writers[form](frames, path, progress)


def _frame_columns(frames: Frames) -> dict[str, npt.NDArray[Any]]:
    """The numbers of each frame, one array per column."""
    parts: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in COLUMNS}
    for block, rows in frames.runs():
        numbers = np.asarray(rows, np.intp)
        for name, kind in COLUMNS.items():
            if name == "epoch":
                values = np.full(len(numbers), block.epoch, kind)
            else:
                values = getattr(block, name)[numbers]
            parts[name].append(values.astype(kind))
    return {name: np.concatenate(arrays or [np.empty(0, COLUMNS[name])]) for name, arrays in parts.items()}


def _plain_array(frame: RecordedFrame) -> npt.NDArray[Any]:
    """The tensor in a type that other formats have: its own type, else the type that carried it."""
    array = frame.array
    is_known = array.dtype.isbuiltin == 1 and array.dtype.kind in "biufc"
    return array if is_known else frame.carried


def _stackable_frames(frames: Frames, progress: Progress | None) -> Iterator[tuple[int, RecordedFrame]]:
    """(number, frame). Raises InvalidFrames for a frame whose type or shape differs from the first one's."""
    total = len(frames)
    if total == 0:
        raise FrameNotRecorded(_NO_FRAMES)
    first = frames[0]
    for number, frame in enumerate(frames):
        if (frame.dtype, frame.shape) != (first.dtype, first.shape):
            raise InvalidFrames(
                f"frame {frame.seq} is {frame.dtype} {frame.shape} and frame {first.seq} is {first.dtype} "
                f"{first.shape}; only frames of one type and shape can be stacked: export to npz, or choose "
                "a range"
            )
        yield number, frame.verify()
        if progress is not None:
            progress(number + 1, total)


def export_mcap(streams: Sequence[Frames], path: Path, progress: Progress | None = None) -> int:
    """Writes every frame as a JSON message on the topic `/stream/<id>`, in order of receipt."""
    try:
        from mcap.writer import Writer
    except ImportError:
        raise MissingPackage(
            "exporting to MCAP needs the package mcap: pip install 'aeron-tensorpool[mcap]'"
        ) from None
    total, done = sum(len(frames) for frames in streams), 0
    with write_errors(path, RETRY_HINT):
        try:
            with path.open("wb") as file:
                writer: Any = Writer(file)
                writer.start(profile="", library="tensorpool")
                channels: dict[tuple[int, str], int] = {}
                for frame in heapq.merge(*streams, key=lambda frame: frame.receive_time_ns):
                    schema, content = _mcap_message(frame.verify())
                    key = frame.stream_id, str(schema["title"])
                    if key not in channels:
                        schema_id = writer.register_schema(
                            name=key[1], encoding="jsonschema", data=json.dumps(schema).encode()
                        )
                        channels[key] = writer.register_channel(
                            topic=f"/stream/{frame.stream_id}", message_encoding="json", schema_id=schema_id
                        )
                    writer.add_message(
                        channel_id=channels[key],
                        log_time=frame.receive_time_ns,
                        publish_time=frame.receive_time_ns,
                        sequence=frame.seq & 0xFFFF_FFFF,
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


def _mcap_message(frame: RecordedFrame) -> tuple[JsonObject, JsonObject]:
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
                for name, column in _frame_columns(frames).items():
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


def export_zarr(frames: Frames, path: Path, progress: Progress | None = None) -> int:
    """Writes a Zarr group (version 3) with `frames` and one array per column."""
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
            for name, column in _frame_columns(frames).items():
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
