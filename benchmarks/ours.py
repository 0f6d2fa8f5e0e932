"""TensorPool itself, through its public API, on a driver in a process of its own, as people run it."""

from __future__ import annotations

import itertools
import mmap
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

import tensorpool as tp
from tensorpool import _native

from . import driver_process
from .library import WORD_BYTES, Frames, Plan, Sender, Source

# One of those that a driver makes on demand.
STREAM_ID = 20000
_SUPERBLOCK_BYTES = 64
_MIN_STRIDE = 64
# So many empty looks go by before the loop outside gets to look at the clock.
_SPINS = 256


def stride_of(size_bytes: int) -> int:
    """The pool that a frame of this size goes to."""
    return max(_MIN_STRIDE, 1 << (size_bytes - 1).bit_length())


def open_context(plan: Plan, mode: Literal["driver", "standalone"] = "driver") -> tp.Context:
    return tp.open(
        mode,
        aeron_dir=driver_process.media_driver_dir(plan.directory),
        media_driver="external",
        shm_base_dir=plan.directory,
    )


def ring_of(producer: tp.Producer, plan: Plan) -> list[npt.NDArray[np.uint64]]:
    """The payload slots of a producer, mapped a second time: the same pages, all present.

    The arrays keep the mapping.
    """
    stride = stride_of(plan.size_bytes)
    (pool,) = Path(plan.directory).glob(f"**/{producer.stream_id}/{producer.epoch}/*.pool")
    with pool.open("r+b") as file:
        region = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
    count = plan.size_bytes // WORD_BYTES
    offsets = (_SUPERBLOCK_BYTES + slot * stride for slot in range(plan.nslots))
    return [np.frombuffer(region, np.uint64, count, offset) for offset in offsets]


def bare_copier(slots: list[npt.NDArray[np.uint64]], source: Source) -> Callable[[], None]:
    """The routine that fills slots, from slot to slot around the ring, and nothing else."""
    copy_bytes, array, ring = _native.copy_bytes, source.array, itertools.cycle(slots)

    def copy() -> None:
        copy_bytes(next(ring), array)  # type: ignore[arg-type]

    return copy


class TensorPool:
    def version(self) -> str:
        return tp.__version__

    def terms(self) -> str:
        return (
            "on a driver, with leases; offer() of an array; poll() of a sixteenth of the ring at a time, "
            "numpy view, valid() after the reading"
        )

    def beside(self, plan: Plan) -> AbstractContextManager[object]:
        return driver_process.running(plan.directory)

    def open(self, plan: Plan) -> tp.Context:
        return open_context(plan)

    @contextmanager
    def producer(self, plan: Plan, source: Source) -> Iterator[Sender]:
        with (
            self.open(plan) as context,
            context.producer(STREAM_ID, pools=[stride_of(plan.size_bytes)], nslots=plan.nslots) as producer,
        ):
            yield Sender(partial(producer.offer, source.array), bare_copier(ring_of(producer, plan), source))

    @contextmanager
    def consumer(self, plan: Plan) -> Iterator[Frames]:
        with self.open(plan) as context, context.consumer(STREAM_ID) as consumer:
            # Few at a time: the last of a long list would be overwritten before its turn came.
            yield _frames(consumer, max(1, plan.nslots // 16))


def _frames(consumer: tp.Consumer, at_once: int) -> Frames:
    poll = consumer.poll
    while True:
        for _ in range(_SPINS):
            for frame in poll(at_once):
                array = frame.array
                first, last = array.item(0), array.item(-1)
                # Read before the writer came round, or it does not count.
                if frame.valid():
                    yield first, last
        yield None


LIBRARY = TensorPool()
