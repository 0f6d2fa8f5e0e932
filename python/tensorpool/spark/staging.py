"""What tasks wrote and nobody has committed yet: payloads in one file, what they are in another.

Below `_sinks/<query>/` of the recording, one directory for each attempt of a task. An attempt that failed
leaves one that no message names; the next commit removes it.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np

from ..durable import write_all, write_errors
from ..recording import NO_TIMESTAMP, NO_TRACE
from ..recording.layout import aligned
from ..recording.tensors import MAX_DIMS, NUMBERS, ORDER_NUMBERS
from .incoming import Frame

SINKS_DIR: Final = "_sinks"
NO_SEQ: Final = (1 << 64) - 1
"""A frame that the sink numbers."""
_PAYLOAD, _INDEX = "payload", "index.npy"

INDEX: Final = np.dtype(
    [
        ("stream_id", "<u4"),
        ("epoch", "<u8"),
        ("seq", "<u8"),
        ("timestamp_ns", "<u8"),
        ("publish_timestamp_ns", "<u8"),
        ("receive_time_ns", "<i8"),
        ("meta_version", "<u4"),
        ("trace_id", "<u8"),
        ("dtype", "<i2"),
        ("major_order", "<i2"),
        ("ndims", "u1"),
        ("dims", "<i4", (MAX_DIMS,)),
        ("strides", "<i8", (MAX_DIMS,)),
        ("at", "<u8"),
        ("payload_bytes", "<u8"),
        ("task", "<u4"),
    ]
)


def query_dir(root: Path, key: str) -> Path:
    if not key or not all(character.isalnum() or character == "-" for character in key):
        raise ValueError(f"{key!r} is no id of a query")
    return root / SINKS_DIR / key


def stage(root: Path, key: str, batch_id: int, task: int, frames: Iterable[Frame]) -> tuple[str, int]:
    """Writes a task's frames; gives the name of their directory and how many there are."""
    directory = query_dir(root, key) / f"{batch_id}-{task}-{secrets.token_hex(4)}"
    directory.mkdir(mode=0o700, parents=True)
    rows: list[tuple[Any, ...]] = []
    end = 0
    path = directory / _PAYLOAD
    with write_errors(path):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            for frame in frames:
                size = frame.data.nbytes
                padding = memoryview(bytes(aligned(size) - size))
                write_all(fd, [frame.data, padding])
                rows.append(_row(frame, end, size, task))
                end += aligned(size)
        finally:
            os.close(fd)
        index = np.array(rows, INDEX) if rows else np.empty(0, INDEX)
        with (directory / _INDEX).open("xb") as file:
            np.save(file, index, allow_pickle=False)
    return directory.name, len(rows)


def _row(frame: Frame, at: int, size: int, task: int) -> tuple[Any, ...]:
    filler = (0,) * (MAX_DIMS - len(frame.shape))
    return (
        frame.stream_id,
        NO_SEQ if frame.epoch is None else frame.epoch,
        NO_SEQ if frame.seq is None else frame.seq,
        frame.timestamp_ns,
        NO_TIMESTAMP if frame.publish_timestamp_ns is None else frame.publish_timestamp_ns,
        frame.receive_time_ns,
        frame.meta_version,
        NO_TRACE if frame.trace_id is None else frame.trace_id,
        NUMBERS[frame.dtype],
        ORDER_NUMBERS[frame.major_order],
        len(frame.shape),
        (*frame.shape, *filler),
        (*frame.strides, *filler),
        at,
        size,
        task,
    )


def load(root: Path, key: str, name: str) -> tuple[Any, Any]:
    """A task's index, and its payloads as mapped bytes."""
    directory = query_dir(root, key) / name
    index = np.load(directory / _INDEX, allow_pickle=False)
    size = (directory / _PAYLOAD).stat().st_size
    payload = np.memmap(directory / _PAYLOAD, np.uint8, "r") if size else np.empty(0, np.uint8)
    return index, payload


def discard(root: Path, key: str, *, up_to: int | None = None, only: Iterable[str] = ()) -> None:
    """Removes what was staged: of every batch up to one, or the named ones."""
    directory = query_dir(root, key)
    names = set(only)
    if up_to is not None and directory.is_dir():
        for path in directory.iterdir():
            first = path.name.partition("-")[0]
            if path.is_dir() and first.isdigit() and int(first) <= up_to:
                names.add(path.name)
    for name in names:
        shutil.rmtree(directory / name, ignore_errors=True)


__all__ = ["INDEX", "NO_SEQ", "SINKS_DIR", "discard", "load", "query_dir", "stage"]
