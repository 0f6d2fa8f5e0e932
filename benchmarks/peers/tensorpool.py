"""TensorPool by its public API, on a driver in its own process."""

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
from tensorpool.shm.epoch_files import SUPERBLOCK_BYTES

from .. import driver_process
from ..library import WORD_BYTES, Frames, Plan, Sender, Source

# In the range of streams that a driver creates on demand.
STREAM_ID = 20000
_MIN_STRIDE = 64
# Empty polls before the caller's loop gets control and reads the clock.
_POLLS_PER_YIELD = 256


def pool_stride(size_bytes: int) -> int:
    """Stride of the pool that a frame of this size goes to."""
    return max(_MIN_STRIDE, 1 << (size_bytes - 1).bit_length())


def open_context(plan: Plan, mode: Literal["driver", "standalone"] = "driver") -> tp.Context:
    """Opens a context on the media driver of the measurement."""
    return tp.open(
        mode,
        aeron_dir=driver_process.media_driver_dir(plan.directory),
        media_driver="external",
        shm_base_dir=plan.directory,
    )


def map_slots(producer: tp.Producer, plan: Plan) -> list[npt.NDArray[np.uint64]]:
    """Maps the payload slots of a producer a second time: the same pages, all of them resident.

    The arrays keep the mapping open.
    """
    stride = pool_stride(plan.size_bytes)
    (pool,) = Path(plan.directory).glob(f"**/{producer.stream_id}/{producer.epoch}/*.pool")
    with pool.open("r+b") as file:
        region = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
    count = plan.size_bytes // WORD_BYTES
    offsets = (SUPERBLOCK_BYTES + slot * stride for slot in range(plan.nslots))
    return [np.frombuffer(region, np.uint64, count, offset) for offset in offsets]


def make_bare_copy(slots: list[npt.NDArray[np.uint64]], source: Source) -> Callable[[], None]:
    """A function that copies the source into the next slot of the ring, with the routine of `offer`."""
    array, ring = source.array, itertools.cycle(slots)
    copy_bytes = partial(_native.copy_bytes, ring_bytes=len(slots) * pool_stride(array.nbytes))

    def copy() -> None:
        copy_bytes(next(ring), array)  # type: ignore[arg-type]

    return copy


class TensorPool:
    """TensorPool with a driver and leases."""

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
        """Opens the context of one endpoint."""
        return open_context(plan)

    @contextmanager
    def producer(self, plan: Plan, source: Source) -> Iterator[Sender]:
        with (
            self.open(plan) as context,
            context.producer(STREAM_ID, pools=[pool_stride(plan.size_bytes)], nslots=plan.nslots) as producer,
        ):
            yield Sender(
                partial(producer.offer, source.array), make_bare_copy(map_slots(producer, plan), source)
            )

    @contextmanager
    def consumer(self, plan: Plan) -> Iterator[Frames]:
        with self.open(plan) as context, context.consumer(STREAM_ID) as consumer:
            # Few at a time: the last frames of a long list would be overwritten before they are read.
            yield _frames(consumer, max(1, plan.nslots // 16))


def _frames(consumer: tp.Consumer, max_frames: int) -> Frames:
    poll = consumer.poll
    while True:
        for _ in range(_POLLS_PER_YIELD):
            for frame in poll(max_frames):
                array = frame.array
                first, last = array.item(0), array.item(-1)
                # A frame that was overwritten while it was read does not count.
                if frame.valid():
                    yield first, last
        yield None


LIBRARY = TensorPool()
