"""A consumer's process: looks at every pixel of every frame it gets, then tells its ledger by epochs."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from .. import _native
from ..client import Consumer, ConsumerLedger
from ..context import Context
from .processes import NAME, Reports, Role, matches_pattern, role_arguments, was_told


class Look:
    """What one consumer saw since the last page was turned."""

    def __init__(self) -> None:
        self.torn = 0
        self.bytes = 0
        self.latencies_us: list[float] = []

    def at(self, frame: _native.Frame, work_s: float) -> None:
        arrived = time.monotonic_ns()
        whole = matches_pattern(frame.array, frame.seq)
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


class ViewerLedgers:
    """The ledger with a page for each epoch. What a page has is what was counted since it was opened."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._opened = consumer.ledger()
        self._torn_before = 0
        self.epoch: int | None = None
        self.pages: list[dict[str, Any]] = []

    def turn(self, look: Look, epoch: int | None = None) -> None:
        """Closes the page, and opens one for `epoch`."""
        before, now = self._opened, self._consumer.ledger()
        page = {
            "epoch": str(self.epoch),
            "span": now.span - before.span,
            "received": now.received - before.received,
            "dropped": _grown(before, now),
            "torn": look.torn - self._torn_before,
            "balanced": now.balanced,
        }
        if self.epoch is not None and (page["span"] or page["dropped"]):
            self.pages.append(page)
        self.epoch, self._opened, self._torn_before = epoch, now, look.torn


def _grown(before: ConsumerLedger, now: ConsumerLedger) -> dict[str, int]:
    """Drops by reason; those that belong to no span are descriptors that came after their epoch's end."""
    counts = {**now.dropped, **now.outside}
    earlier = {**before.dropped, **before.outside}
    return {reason: n - earlier[reason] for reason, n in counts.items() if n > earlier[reason]}


def run_viewer(role: Role, reports: Reports) -> None:
    # The stream is there when the director says so.
    sys.stdin.readline()
    with role.attach() as ctx, ctx.consumer(name=NAME, policy=role.policy) as consumer:
        reports.say("ready", pid=os.getpid())
        look, book, seen = Look(), ViewerLedgers(consumer), None
        while not was_told():
            if (epoch := consumer.epoch) not in (None, book.epoch):
                # What is still on its way belongs to the page before: the director lets nobody film into
                # an epoch before everyone has opened the page.
                _drain(consumer, look)
                book.turn(look, epoch)
                reports.say(f"mapped-{epoch}")
            frame = consumer.receive_or_none(0.05)
            if frame is not None:
                if frame.epoch != seen:
                    seen = frame.epoch
                    reports.say(f"first-{seen}")
                look.at(frame, role.work_s)
            if reports.due():
                _tell_events(ctx, reports)
                _sample(reports, consumer, look)
        _drain(consumer, look)
        book.turn(look)
        _tell_events(ctx, reports)
        _sample(reports, consumer, look)
        reports.say("ledger", pages=book.pages)


def _drain(consumer: Consumer, look: Look) -> None:
    while (frame := consumer.receive_or_none(0.05)) is not None:
        look.at(frame, 0.0)


def _tell_events(ctx: Context, reports: Reports) -> None:
    for event in ctx.events(timeout=0.0):
        if event.kind == "unmapped":
            reports.say(f"unmapped-{event.epoch}", happened_ns=event.at_ns, why=event.detail)


def _sample(reports: Reports, consumer: Consumer, look: Look) -> None:
    ledger, lease = consumer.ledger(), consumer.lease() or {}
    counts = {**ledger.dropped, **ledger.outside}
    reports.say(
        "sample",
        frames=ledger.received,
        bytes=look.bytes,
        dropped={reason: n for reason, n in counts.items() if n},
        latency_us=look.latency_us(),
        torn=look.torn,
        lease=str(lease["lease_id"]) if lease.get("lease_id") else None,
        epoch=str(consumer.epoch) if consumer.epoch else None,
    )


if __name__ == "__main__":
    run_viewer(role_arguments(), Reports())
