"""zenoh: payloads in its shared memory, announced over a local socket."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.metadata import version
from typing import Any

import zenoh

from ..library import Frames, Plan, Sender, Source

_KEY = "tensorpool/benchmark"
_SPARE_SLOTS = 4


class Zenoh:
    """zenoh peers with shared memory."""

    def version(self) -> str:
        return version("eclipse-zenoh")

    def terms(self) -> str:
        return (
            "ShmProvider.alloc(), slice assignment into the buffer, put() with congestion control DROP; "
            "RingChannel as deep as the ring, try_recv(), bytes() (its binding has no view of a payload)"
        )

    def beside(self, plan: Plan) -> AbstractContextManager[object]:
        return nullcontext()

    @contextmanager
    def producer(self, plan: Plan, source: Source) -> Iterator[Sender]:
        with zenoh.open(_config(plan, "listen")) as session:
            # Space for the ring, for samples being filled, and for zenoh's bookkeeping.
            pool_bytes = plan.size_bytes * (plan.nslots + _SPARE_SLOTS) + (1 << 16)
            provider = zenoh.shm.ShmProvider.default_backend(pool_bytes)
            publisher = session.declare_publisher(_KEY, congestion_control=zenoh.CongestionControl.DROP)
            alloc, put, data, size = provider.alloc, publisher.put, source.bytes, plan.size_bytes
            policy, full = zenoh.shm.GarbageCollect(), zenoh.ZError

            def send() -> None:
                # Waiting for space would block forever after the consumer has ended. Without space the frame
                # is lost, as in a ring.
                try:
                    buffer = alloc(size, policy=policy)
                except full:
                    return
                buffer[:] = data
                put(buffer)

            yield Sender(send)

    @contextmanager
    def consumer(self, plan: Plan) -> Iterator[Frames]:
        with zenoh.open(_config(plan, "connect")) as session:
            channel: Any = zenoh.handlers.RingChannel(plan.nslots)
            yield _frames(session.declare_subscriber(_KEY, channel))


def _frames(subscriber: Any) -> Frames:
    receive = subscriber.try_recv
    while True:
        sample = receive()
        if sample is None:
            # zenoh's threads deliver the sample: with few cores they need the core that this loop spins on.
            time.sleep(0)
            yield None
            continue
        values = memoryview(bytes(sample.payload.as_shm() or sample.payload)).cast("Q")
        yield values[0], values[-1]


def _config(plan: Plan, role: str) -> Any:
    config = zenoh.Config()
    for key, value in (
        ("mode", "peer"),
        ("scouting/multicast/enabled", False),
        ("scouting/gossip/enabled", False),
        ("transport/shared_memory/enabled", True),
        ("listen/endpoints", []),
        (f"{role}/endpoints", [f"unixsock-stream/{plan.directory}/zenoh.sock"]),
    ):
        config.insert_json5(key, json.dumps(value))
    return config


LIBRARY = Zenoh()
