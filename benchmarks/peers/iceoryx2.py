"""iceoryx2: loaned samples are filled in place and received without a copy."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Any

import iceoryx2 as iox2

from ..library import WORD_BYTES, Frames, Plan, Sender, Source

# Empty polls before the caller's loop gets control and reads the clock.
_POLLS_PER_YIELD = 256


class Iceoryx2:
    """iceoryx2 publish-subscribe."""

    def version(self) -> str:
        return version("iceoryx2")

    def terms(self) -> str:
        return (
            "loan_slice_uninit(), memmove into the payload, send(); receive(), ctypes array at payload_ptr; "
            "safe overflow (a producer never waits), subscriber buffer as deep as the ring"
        )

    def beside(self, plan: Plan) -> AbstractContextManager[object]:
        return nullcontext()

    @contextmanager
    def producer(self, plan: Plan, source: Source) -> Iterator[Sender]:
        service = _service(plan)
        count = plan.size_bytes // WORD_BYTES
        publisher = service.publisher_builder().initial_max_slice_len(count).create()
        loan, move = publisher.loan_slice_uninit, ctypes.memmove
        address, size = source.address, plan.size_bytes

        def send() -> None:
            sample = loan(count)
            move(sample.payload_ptr, address, size)
            sample.assume_init().send()

        yield Sender(send)

    @contextmanager
    def consumer(self, plan: Plan) -> Iterator[Frames]:
        yield _frames(subscriber(plan), plan.size_bytes // WORD_BYTES)


def subscriber(plan: Plan) -> Any:
    """A subscriber with a buffer as deep as the ring."""
    return _service(plan).subscriber_builder().buffer_size(plan.nslots).create()


def event_service(plan: Plan) -> Any:
    """The service of the notifier and the listener of a measurement."""
    # The path of a listener's socket has 107 bytes at most.
    return (
        _node(plan, Path(plan.directory).name[-8:])
        .service_builder(iox2.ServiceName.new("arrivals"))
        .event()
        .open_or_create()
    )


def _frames(subscriber: Any, count: int) -> Frames:
    receive, view, end = subscriber.receive, (ctypes.c_uint64 * count).from_address, count - 1
    while True:
        for _ in range(_POLLS_PER_YIELD):
            sample = receive()
            if sample is not None:
                values = view(sample.payload_ptr)
                yield values[0], values[end]
        yield None


def _node(plan: Plan, prefix: str) -> Any:
    iox2.set_log_level(iox2.LogLevel.Error)
    config = iox2.config.default()
    # All files carry the name of this measurement, so that leftovers can be found and removed.
    config.global_cfg.root_path = iox2.Path.new(f"{plan.directory}/")
    config.global_cfg.prefix = iox2.FileName.new(f"{prefix}-")
    return iox2.NodeBuilder.new().config(config).create(iox2.ServiceType.Ipc)


def _service(plan: Plan) -> Any:
    return (
        _node(plan, Path(plan.directory).name)
        .service_builder(iox2.ServiceName.new(f"frames-{os.path.basename(plan.directory)}"))
        .publish_subscribe(iox2.Slice[ctypes.c_uint64])
        .payload_alignment(iox2.Alignment.new(64))
        .enable_safe_overflow(True)
        .subscriber_max_buffer_size(plan.nslots)
        .history_size(0)
        .max_publishers(1)
        .max_subscribers(1)
        .open_or_create()
    )


LIBRARY = Iceoryx2()
