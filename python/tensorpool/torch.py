"""Frames for torch: live streams and recordings as datasets of `torch.utils.data.DataLoader`.

    loader = DataLoader(tensorpool.torch.recorded("run-7"), batch_size=32, shuffle=True, num_workers=2,
                        collate_fn=tensorpool.torch.collate)

Needs torch, which is not installed with the package.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from . import _native
from .context import open as open_context
from .errors import ConfigError, FrameOverwritten, MissingPackage
from .recording.frame import PayloadRef, RecordedFrame
from .recording.recording import FrameDataset, Recording, Time

try:
    import torch
    from torch.utils.data import Dataset, IterableDataset, get_worker_info
except ImportError as error:
    raise MissingPackage("tensorpool.torch needs torch: pip install torch") from error

__all__ = ["LiveFrames", "RecordedFrames", "collate", "live", "recorded"]


class _ElementType(NamedTuple):
    """An element type of torch, and the numpy type by which its memory is written."""

    name: str
    carrier: str

    @classmethod
    def from_numpy(cls, dtype: np.dtype[Any]) -> _ElementType:
        """Also of a type of ml_dtypes, as bfloat16: torch takes its memory as numbers of that size."""
        try:
            kind = torch.from_numpy(np.empty(0, dtype)).dtype
        except TypeError:
            if getattr(torch, dtype.name, None) is None:
                raise
            return cls(dtype.name, f"i{dtype.itemsize}")
        return cls(str(kind).removeprefix("torch."), dtype.str)

    @property
    def kind(self) -> Any:
        """The type as torch has it."""
        return getattr(torch, self.name)


def _tensor(frame: _native.Frame) -> Any:
    array = frame.copy()
    element = _ElementType.from_numpy(array.dtype)
    return torch.from_numpy(array.view(element.carrier)).view(element.kind)


def worker_of(seq: int, workers: int) -> int:
    """The worker that the frame `seq` belongs to, the same in every worker.

    By a hash. By `seq % workers`, one of two workers would get nothing of a stream that is limited to every
    second frame, and the DataLoader, which asks them in turn, would wait for it for ever.
    """
    digest = blake2b(seq.to_bytes(8, "little"), digest_size=8).digest()
    return int.from_bytes(digest, "little") % workers


def live(
    stream: int | str,
    *,
    transform: Callable[[_native.Frame], Any] | None = None,
    max_rate_hz: float | None = None,
    timeout: float | None = None,
    context: Mapping[str, object] | None = None,
    **options: Any,
) -> LiveFrames:
    """The frames of a running stream, by id or name, as a dataset without an end.

    Each worker of a DataLoader opens a context and a consumer of its own, with the keywords `context` of
    `tensorpool.open()` and `options` of `ctx.consumer()`, and takes its share of the frames: none is returned
    twice. `max_rate_hz` is the rate of all workers together. `transform` makes an item of a frame; by default
    it is a tensor, copied and proven. A frame that is overwritten meanwhile is skipped, also if `transform`
    failed over it, and counted in the ledger of its consumer. The iteration ends after `timeout` seconds
    without a frame; None: never.
    """
    return LiveFrames(
        stream, transform or _tensor, {"max_rate_hz": max_rate_hz, **options}, context or {}, timeout
    )


class LiveFrames(IterableDataset):  # type: ignore[misc,no-any-unimported,unused-ignore]
    """The frames of a running stream; `tensorpool.torch.live` makes one."""

    def __init__(
        self,
        stream: int | str,
        transform: Callable[[_native.Frame], Any],
        consumer: Mapping[str, Any],
        context: Mapping[str, Any],
        timeout: float | None,
    ) -> None:
        self._stream = stream
        self._transform = transform
        self._consumer = consumer
        self._context = context
        self._timeout = timeout

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        number, of = (0, 1) if worker is None else (worker.id, worker.num_workers)
        stream = self._stream
        chosen = {"name": stream} if isinstance(stream, str) else {"stream_id": stream}
        with open_context(**self._context) as ctx, ctx.consumer(**chosen, **self._consumer) as frames:
            while (frame := frames.receive_or_none(self._timeout)) is not None:
                if worker_of(frame.seq, of) != number:
                    continue
                try:
                    item = self._transform(frame)
                except FrameOverwritten:
                    continue
                except Exception:
                    # Overwritten data may make any computation fail.
                    if frame.valid():
                        raise
                    continue
                if frame.valid():
                    del frame
                    yield item


def recorded(
    roots: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    streams: int | Sequence[int] | None = None,
    time: tuple[Time | None, Time | None] | None = None,
    transform: Callable[[RecordedFrame], Any] | None = None,
) -> RecordedFrames:
    """The frames of one or several recordings by number: random access for a DataLoader.

    `streams` chooses streams, `time` (first, last) the time of receipt: two calls with different times split
    a recording for training and validation. `transform` makes an item of a frame; by default it is the
    frame's array, a read-only view of the mapped file, which `tensorpool.torch.collate` copies into the
    batch, once. Works in workers that were forked or spawned: each opens the files itself.
    """
    if isinstance(roots, str | os.PathLike):
        roots = [roots]
    chosen = [streams] if isinstance(streams, int) else streams
    parts = []
    for root in roots:
        with Recording(root) as recording:
            known = recording.streams
        for stream_id in known if chosen is None else [s for s in chosen if s in known]:
            parts.append(FrameDataset(root, stream_id, time=time, transform=transform or _view))
    if not parts:
        raise ConfigError(f"no frames: streams {list(chosen or ())} are in none of the recordings")
    return RecordedFrames(parts)


class _RecordedArray(np.ndarray):
    """The array of a recorded frame, with its place in the recording."""

    ref: PayloadRef | None = None

    def __array_finalize__(self, array: object) -> None:
        # Another view of the array is another part of the file.
        self.ref = None


def _view(frame: RecordedFrame) -> npt.NDArray[Any]:
    array = frame.array.view(_RecordedArray)
    array.ref = frame.ref
    return array


class RecordedFrames(Dataset):  # type: ignore[misc,no-any-unimported,unused-ignore]
    """Frames of recordings by number; `tensorpool.torch.recorded` makes one."""

    def __init__(self, parts: Sequence[FrameDataset[Any]]) -> None:
        self._parts = list(parts)
        self._ends = np.cumsum([len(part) for part in self._parts])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> Any:
        length = len(self)
        if not -length <= index < length:
            raise IndexError(f"frame {index} of {length}")
        at = index % length
        part = int(np.searchsorted(self._ends, at, side="right"))
        return self._parts[part][at - int(self._ends[part - 1] if part else 0)]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Several at once, as a DataLoader asks for a batch."""
        return [self[index] for index in indices]


def collate(items: Sequence[Any]) -> Any:
    """A batch of arrays or tensors of one shape as one tensor, with a single copy of each frame.

    In a worker process, frames as `recorded` returns them are not copied: the batch names their place, and
    the main process copies them out of the mapped files, into pinned memory where there is a GPU, so that
    `.to("cuda", non_blocking=True)` is asynchronous. The worker has read them from the disk by then. Arrays
    that a transform made are collated in memory that both processes share. Tuples and dicts are collated by
    member.
    """
    first = items[0]
    if isinstance(first, tuple):
        return tuple(collate(member) for member in zip(*items, strict=True))
    if isinstance(first, dict):
        return {key: collate([item[key] for item in items]) for key in first}
    if not isinstance(first, np.ndarray | torch.Tensor):
        return torch.utils.data.default_collate(list(items))
    arrays = [np.asanyarray(item) for item in items]
    shapes = {array.shape for array in arrays}
    if len(shapes) != 1:
        raise ValueError(f"frames of different shapes cannot be one batch: {sorted(shapes)}; use transform=")
    dtypes = {str(array.dtype) for array in arrays}
    if len(dtypes) != 1:
        raise ValueError(f"frames of different types cannot be one batch: {sorted(dtypes)}; use transform=")
    is_worker = get_worker_info() is not None
    if is_worker and (batch := _ReferencedBatch.from_arrays(arrays)) is not None:
        return batch
    element = _ElementType.from_numpy(arrays[0].dtype)
    target = _empty_batch((len(arrays), *arrays[0].shape), element.carrier, is_shared=is_worker)
    rows = target.numpy()
    for i, array in enumerate(arrays):
        np.copyto(rows[i, ...], array.view(element.carrier))
    return target.view(element.kind)


def _empty_batch(shape: tuple[int, ...], carrier: str, *, is_shared: bool) -> Any:
    """An uninitialised tensor for a batch, where its next reader needs no copy."""
    kind = torch.from_numpy(np.empty(0, carrier)).dtype
    if not is_shared:
        return torch.empty(shape, dtype=kind, pin_memory=torch.cuda.is_available())
    return torch.empty(shape, dtype=kind).share_memory_()


@dataclass(frozen=True, slots=True)
class _ReferencedBatch:
    """A batch that travels to another process as places in files; there it arrives as a tensor."""

    shape: tuple[int, ...]
    element: _ElementType
    strides: tuple[int, ...]
    places: tuple[tuple[str, int, int], ...]
    """Path, offset and length of each frame."""

    @classmethod
    def from_arrays(cls, arrays: Sequence[npt.NDArray[Any]]) -> _ReferencedBatch | None:
        """The batch; None if an array is not the whole array of a recorded frame."""
        places, first = [], arrays[0]
        for array in arrays:
            ref = array.ref if isinstance(array, _RecordedArray) else None
            # A frame of a remote recording has no file that the other process could map.
            if (
                ref is None
                or not isinstance(ref.path, Path)
                or array.dtype != first.dtype
                or array.strides != first.strides
            ):
                return None
            # One byte of each page, so that the file is in memory when the other process copies it.
            array.view(np.ndarray).ravel(order="K").view(np.uint8)[:: mmap.PAGESIZE].max(initial=0)
            places.append((str(ref.path.absolute()), ref.offset, ref.length))
        return cls(first.shape, _ElementType.from_numpy(first.dtype), first.strides, tuple(places))

    def load(self) -> Any:
        """The tensor, copied out of the mapped files."""
        dtype = np.dtype(self.element.carrier)
        batch = _empty_batch((len(self.places), *self.shape), self.element.carrier, is_shared=False)
        rows = list(zip(batch.numpy(), self.places, strict=True))

        def copy(part: slice) -> None:
            for row, (path, offset, length) in rows[part]:
                file = _mapped(path, offset + length)
                np.copyto(row, np.ndarray(self.shape, dtype, file, offset, self.strides))

        # A batch is larger than a cache: two threads copy it faster than one, without the interpreter.
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(copy, (slice(0, None, 2), slice(1, None, 2))))
        return batch.view(self.element.kind)

    def __reduce__(self) -> tuple[Any, ...]:
        return _load_batch, (self.shape, tuple(self.element), self.strides, self.places)


def _load_batch(
    shape: tuple[int, ...],
    element: tuple[str, str],
    strides: tuple[int, ...],
    places: tuple[tuple[str, int, int], ...],
) -> Any:
    return _ReferencedBatch(shape, _ElementType(*element), strides, places).load()


@dataclass(frozen=True, slots=True)
class _MappedFile:
    """A file as it was when it was mapped. Its inode is not given to another one meanwhile."""

    inode: tuple[int, int]
    content: npt.NDArray[np.uint8]


_MAX_MAPPED_FILES: Final = 256
_mapped_files: OrderedDict[str, _MappedFile] = OrderedDict()
_mapped_files_lock = threading.Lock()


def _mapped(path: str, end: int) -> npt.NDArray[np.uint8]:
    """A segment file, mapped once; again if it has grown, or if another recording has its name now."""
    with _mapped_files_lock:
        facts = os.stat(path)
        inode = facts.st_dev, facts.st_ino
        found = _mapped_files.get(path)
        if found is None or found.inode != inode or len(found.content) < end:
            found = _mapped_files[path] = _MappedFile(inode, np.memmap(path, np.uint8, "r"))
        _mapped_files.move_to_end(path)
        while len(_mapped_files) > _MAX_MAPPED_FILES:
            _mapped_files.popitem(last=False)
        return found.content
