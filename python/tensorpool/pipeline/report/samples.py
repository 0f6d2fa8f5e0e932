"""Some frames to look at, evenly over what silver has of each stream."""

from __future__ import annotations

import mmap
import os
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
_COLUMNS: Final = (
    "epoch", "seq", "receive_time_ns", "dtype", "shape", "strides", "payload_bytes", "crc32c",
    "segment", "payload_offset", "payload",
)  # fmt: skip


def samples_of(files: list[TableFile], each: int) -> list[Sample]:
    """Up to `each` frames of each stream, of the first few streams."""
    by_stream: dict[int, list[TableFile]] = {}
    for file in files:
        if file.stream_id is not None:
            by_stream.setdefault(file.stream_id, []).append(file)
    found = []
    for stream_id in sorted(by_stream)[:MAX_STREAMS]:
        found += [_sample(stream_id, row) for row in _rows(by_stream[stream_id], each)]
    return found


def _rows(files: list[TableFile], each: int) -> list[dict[str, Any]]:
    """Rows at even distances."""
    groups: list[tuple[TableFile, int, int]] = []
    for file in files:
        with file.open() as opened:
            meta = opened.metadata
            groups += [
                (file, number, meta.row_group(number).num_rows)
                for number in range(meta.num_row_groups)
                if meta.row_group(number).num_rows
            ]
    total = sum(rows for _, _, rows in groups)
    wanted = sorted({round(place) for place in np.linspace(0, total - 1, min(each, total))}) if total else []
    found = []
    at = 0
    for file, number, rows in groups:
        inside = [place - at for place in wanted if at <= place < at + rows]
        if inside:
            with file.open() as opened:
                found += _of_group(opened, number, inside)
        at += rows
    return found


def _of_group(file: pq.ParquetFile, group: int, places: list[int]) -> list[dict[str, Any]]:
    """Rows of one group. Where payloads are inside, one at a time: a group of them may be large."""
    columns = [name for name in _COLUMNS if name in file.schema_arrow.names]
    step = 1 if "payload" in columns else 4_096
    found: list[dict[str, Any]] = []
    at = 0
    for batch in file.iter_batches(step, row_groups=[group], columns=columns, use_threads=False):
        found += [
            batch.slice(place - at, 1).to_pylist()[0] for place in places if at <= place < at + len(batch)
        ]
        at += len(batch)
        if at > places[-1]:
            break
    return found


def _sample(stream_id: int, row: dict[str, Any]) -> Sample:
    sample = Sample(
        stream_id, row["epoch"], row["seq"], row["receive_time_ns"], str(row["dtype"]),
        tuple(row["shape"] or ()),
    )  # fmt: skip
    try:
        _draw(sample, row)
    except NotAnImage as error:
        sample.problem = str(error)
    except FileNotFoundError:
        sample.problem = "the recording is not where it was"
    except (OSError, ValueError) as error:
        sample.problem = str(error)
    return sample


def _draw(sample: Sample, row: dict[str, Any]) -> None:
    data = row.get("payload")
    if data is None:
        data = _read(Path(row["segment"]), row["payload_offset"], row["payload_bytes"])
    if _native.crc32c(data) != row["crc32c"]:
        raise ValueError("the payload is not what was written")
    array = as_array(data, sample.dtype, sample.shape, row["strides"], f"frame {sample.seq}")
    if array.ndim == 1:
        sample.line = _line(array)
    else:
        sample.image = encode_png(_small(array))


def _read(segment: Path, offset: int, length: int) -> bytes:
    """A payload of a segment, which may have been sealed since its row was written."""
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
    # Cameras of 10 to 14 bits would look black: a picture to look at uses the whole range.
    return to_pixels(small.astype(np.float32)) if small.dtype == np.uint16 else small


def _line(array: npt.NDArray[Any]) -> list[float]:
    step = max(-(-len(array) // _POINTS), 1)
    values = to_real(array[::step]).astype(np.float64)
    return [float(one) for one in np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)]
