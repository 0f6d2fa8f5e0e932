"""Previews of some frames of each stream, evenly spaced over the rows of silver."""

from __future__ import annotations

import mmap
import os
from collections import Counter
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from ... import _native
from ...preview import NotAnImage, encode_png, to_pixels, to_real
from ...recording.layout import PARTIAL, SEALED
from ...recording.tensors import as_array
from .figures import Sample
from .tables import TableFile

MAX_STREAMS: Final = 12
_PIXELS: Final = 256
_POINTS: Final = 400


@dataclass(slots=True)
class _Row:
    """A row of silver. A table has the place of the payload, or the payload."""

    epoch: int
    seq: int
    receive_time_ns: int
    dtype: str
    shape: list[int] | None
    strides: list[int] | None
    payload_bytes: int
    crc32c: int
    segment: str = ""
    payload_offset: int = 0
    payload: bytes | None = None


_COLUMNS: Final = tuple(field.name for field in fields(_Row))


def samples_of(files: list[TableFile], each: int) -> list[Sample]:
    """Previews of `each` frames of each stream, from evenly spaced rows."""
    counts = [_counts(file) for file in files]
    streams = sorted({stream for count in counts for stream in count})
    samples: list[Sample] = []
    for stream_id in streams[:MAX_STREAMS]:
        samples += [_sample(stream_id, row) for row in _rows(files, counts, stream_id, each)]
    return samples


def _counts(file: TableFile) -> Counter[int]:
    """The number of rows of each stream in a file."""
    counts: Counter[int] = Counter()
    for batch in file.batches(["stream_id"]):
        streams, numbers = np.unique(batch.column("stream_id").to_numpy(), return_counts=True)
        counts.update(dict(zip(streams.tolist(), numbers.tolist(), strict=True)))
    return counts


def _rows(files: list[TableFile], counts: list[Counter[int]], stream_id: int, each: int) -> list[_Row]:
    """Evenly spaced rows of a stream, in the order of its files."""
    total = sum(count[stream_id] for count in counts)
    wanted = sorted({round(place) for place in np.linspace(0, total - 1, min(each, total))}) if total else []
    chosen: list[_Row] = []
    before = 0
    for file, count in zip(files, counts, strict=True):
        inside = [place - before for place in wanted if before <= place < before + count[stream_id]]
        before += count[stream_id]
        if inside:
            chosen += _of_stream(file, stream_id, inside)
    return chosen


def _of_stream(file: TableFile, stream_id: int, places: list[int]) -> list[_Row]:
    """The rows of a file at some places among the rows of a stream."""
    rows: list[_Row] = []
    seen = 0
    with file.open() as opened:
        for group in range(opened.num_row_groups):
            streams = opened.read_row_group(group, columns=["stream_id"], use_threads=False)["stream_id"]
            own = np.flatnonzero(streams.to_numpy() == stream_id)
            inside = [int(own[place - seen]) for place in places if seen <= place < seen + len(own)]
            seen += len(own)
            if inside:
                rows += _of_group(opened, group, inside)
    return rows


def _of_group(file: pq.ParquetFile, group: int, places: list[int]) -> list[_Row]:
    """Rows of one row group. Rows with inline payloads are read one at a time: a group may be large."""
    columns = [name for name in _COLUMNS if name in file.schema_arrow.names]
    step = 1 if "payload" in columns else 4_096
    rows: list[_Row] = []
    at = 0
    for batch in file.iter_batches(step, row_groups=[group], columns=columns, use_threads=False):
        rows += [
            _Row(**batch.slice(place - at, 1).to_pylist()[0])
            for place in places
            if at <= place < at + len(batch)
        ]
        at += len(batch)
        if at > places[-1]:
            break
    return rows


def _sample(stream_id: int, row: _Row) -> Sample:
    sample = Sample(
        stream_id, row.epoch, row.seq, row.receive_time_ns, row.dtype, tuple(row.shape or ()),
    )  # fmt: skip
    try:
        _draw(sample, row)
    except NotAnImage as error:
        sample.problem = str(error)
    except FileNotFoundError:
        sample.problem = "the recording was moved or removed"
    except (OSError, ValueError) as error:
        sample.problem = str(error)
    return sample


def _draw(sample: Sample, row: _Row) -> None:
    data = row.payload
    if data is None:
        data = _read(row.segment, row.payload_offset, row.payload_bytes)
    if _native.crc32c(data) != row.crc32c:
        raise ValueError("the payload does not match its checksum")
    array = as_array(data, sample.dtype, sample.shape, row.strides, f"frame {sample.seq}")
    if array.ndim == 1:
        sample.line = _line(array)
    else:
        sample.image = encode_png(_small(array))


def _read(name: str, offset: int, length: int) -> bytes:
    """A payload of a segment, which is sealed or still partial, or in a store."""
    if "://" in name:
        from ...spark.tensors.rows import Segments

        return bytes(Segments().read(name, offset, length))
    segment = Path(name)
    partial = segment.with_name(segment.name.removesuffix(SEALED) + PARTIAL)
    fd = -1
    for path in (segment, partial):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            break
        except FileNotFoundError:
            continue
    if fd < 0:
        raise FileNotFoundError(str(segment))
    try:
        with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as mapped:
            return mapped[offset : offset + length]
    finally:
        os.close(fd)


def _small(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    pixels = to_pixels(array)
    step = max(-(-max(pixels.shape[:2]) // _PIXELS), 1)
    small = pixels[::step, ::step]
    # Frames of cameras with 10 to 14 bits would be nearly black: a preview uses the whole range.
    return to_pixels(small.astype(np.float32)) if small.dtype == np.uint16 else small


def _line(array: npt.NDArray[Any]) -> list[float]:
    step = max(-(-len(array) // _POINTS), 1)
    values = to_real(array[::step]).astype(np.float64)
    return [float(value) for value in np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)]
