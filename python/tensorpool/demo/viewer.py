"""A consumer's process: looks at every pixel of every frame it gets, then gives its ledger."""

from __future__ import annotations

import time

from .. import _native, context
from ..client import Consumer
from .reports import Reports, Role, role_arguments, was_told
from .scene import is_whole


class Look:
    """What one consumer saw."""

    def __init__(self) -> None:
        self.torn = 0
        self.bytes = 0
        self.latencies_us: list[float] = []

    def at(self, frame: _native.Frame, work_s: float) -> None:
        arrived = time.monotonic_ns()
        whole = is_whole(frame.array, frame.seq)
        if work_s:
            time.sleep(work_s)
        # The proof comes after the use: a frame that is no longer there was not received.
        if not frame.valid():
            return
        self.torn += not whole
        self.bytes += frame.nbytes
        self.latencies_us.append((arrived - frame.timestamp_ns) / 1000)

    def latency_us(self) -> float | None:
        """The median since the last question."""
        recent, self.latencies_us = sorted(self.latencies_us), []
        return recent[len(recent) // 2] if recent else None


def view(role: Role, reports: Reports) -> None:
    with (
        context.open(aeron_dir=role.aeron_dir, media_driver="external", shm_base_dir=role.base) as ctx,
        ctx.consumer(role.stream_id, policy=role.policy) as consumer,
    ):
        while consumer.epoch is None:
            time.sleep(0.01)
        reports.say("ready")
        look = Look()
        while not was_told():
            frame = consumer.receive_or_none(0.05)
            if frame is not None:
                look.at(frame, role.work_s)
            if reports.due():
                _sample(reports, consumer, look)
        while (frame := consumer.receive_or_none(0.2)) is not None:
            look.at(frame, 0.0)
        _sample(reports, consumer, look)
        ledger = consumer.ledger()
        reports.say(
            "ledger",
            span=ledger.span,
            received=ledger.received,
            dropped={reason: n for reason, n in ledger.dropped.items() if n},
            outside={reason: n for reason, n in ledger.outside.items() if n},
            last_seq=consumer.last_seq,
            torn=look.torn,
            balanced=ledger.balanced,
        )


def _sample(reports: Reports, consumer: Consumer, look: Look) -> None:
    ledger = consumer.ledger()
    dropped = {reason: n for reason, n in ledger.dropped.items() if n}
    reports.say(
        "sample",
        frames=ledger.received,
        bytes=look.bytes,
        dropped=dropped,
        latency_us=look.latency_us(),
        torn=look.torn,
    )


if __name__ == "__main__":
    view(role_arguments(), Reports())
