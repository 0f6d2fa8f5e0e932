"""A viewer process: checks every pixel of every frame it receives, then reports its ledger by epoch."""

from __future__ import annotations

import os
import sys
import time

from .. import _native
from ..client import Consumer, ConsumerLedger
from ..context import Context
from .processes import NAME, DemoOptions, ReportWriter, has_command, matches_pattern, parse_options
from .reports import FirstFrame, Mapped, ProcessSample, Ready, Unmapped, ViewerLedger, ViewerReport

_RECEIVE_S = 0.05


class FrameChecker:
    """Checks frames; counts bytes, torn frames and latencies."""

    def __init__(self) -> None:
        self.torn = 0
        self.bytes = 0
        self._latencies_us: list[float] = []

    def check(self, frame: _native.Frame, work_s: float) -> None:
        """Compares a frame with its pattern, and simulates `work_s` seconds of work on it."""
        received_ns = time.monotonic_ns()
        is_intact = matches_pattern(frame.array, frame.seq)
        if work_s:
            time.sleep(work_s)
        # Validated after its use: a frame that was overwritten meanwhile counts as dropped.
        if not frame.valid():
            return
        self.torn += not is_intact
        self.bytes += frame.nbytes
        self._latencies_us.append((received_ns - frame.timestamp_ns) / 1000)

    def take_latency_us(self) -> float | None:
        """The median latency since the previous call."""
        recent, self._latencies_us = sorted(self._latencies_us), []
        return recent[len(recent) // 2] if recent else None


class ViewerLedgers:
    """The ledgers of a consumer by epoch: the growth of its counts between two epochs."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._before = consumer.ledger()
        self._torn_before = 0
        self.epoch: int | None = None
        self.ledgers: dict[str, ViewerLedger] = {}

    def start_epoch(self, checker: FrameChecker, epoch: int | None = None) -> None:
        """Completes the ledger of the current epoch, and starts that of `epoch`."""
        before, now = self._before, self._consumer.ledger()
        ledger = ViewerLedger(
            received=now.received - before.received,
            dropped=_new_drops(before, now),
            torn=checker.torn - self._torn_before,
            balanced=now.balanced,
            span=now.span - before.span,
        )
        if self.epoch is not None and (ledger.span or ledger.dropped):
            self.ledgers[str(self.epoch)] = ledger
        self.epoch, self._before, self._torn_before = epoch, now, checker.torn


def _new_drops(before: ConsumerLedger, now: ConsumerLedger) -> dict[str, int]:
    """New drops by reason. Drops outside of the span are descriptors of an epoch that had ended."""
    counts = {**now.dropped, **now.outside}
    earlier = {**before.dropped, **before.outside}
    return {reason: n - earlier[reason] for reason, n in counts.items() if n > earlier[reason]}


def run_viewer(options: DemoOptions, reports: ReportWriter) -> None:
    """Checks frames until the parent sends a line."""
    # The parent sends the first line when the stream exists.
    sys.stdin.readline()
    with options.attach() as ctx, ctx.consumer(name=NAME, policy=options.policy) as consumer:
        reports.send(Ready(pid=os.getpid()))
        checker, ledgers, first_of = FrameChecker(), ViewerLedgers(consumer), None
        while not has_command():
            if (epoch := consumer.epoch) not in (None, ledgers.epoch):
                # Queued frames belong to the previous epoch: the parent starts a camera only after all
                # consumers have reported that they mapped its epoch.
                _drain(consumer, checker)
                ledgers.start_epoch(checker, epoch)
                reports.send(Mapped(key=str(epoch)))
            frame = consumer.receive_or_none(_RECEIVE_S)
            if frame is not None:
                if frame.epoch != first_of:
                    first_of = frame.epoch
                    reports.send(FirstFrame(key=str(first_of)))
                checker.check(frame, options.work_s)
            if reports.is_due():
                _report_events(ctx, reports)
                _report_sample(reports, consumer, checker)
        _drain(consumer, checker)
        ledgers.start_epoch(checker)
        _report_events(ctx, reports)
        _report_sample(reports, consumer, checker)
        reports.send(ViewerReport(epochs=ledgers.ledgers))


def _drain(consumer: Consumer, checker: FrameChecker) -> None:
    while (frame := consumer.receive_or_none(_RECEIVE_S)) is not None:
        checker.check(frame, 0.0)


def _report_events(ctx: Context, reports: ReportWriter) -> None:
    for event in ctx.events(timeout=0.0):
        if event.kind == "unmapped":
            reports.send(Unmapped(key=str(event.epoch), unmapped_ns=event.at_ns, reason=event.detail))


def _report_sample(reports: ReportWriter, consumer: Consumer, checker: FrameChecker) -> None:
    ledger, lease = consumer.ledger(), consumer.lease()
    counts = {**ledger.dropped, **ledger.outside}
    reports.send(
        ProcessSample(
            frames=ledger.received,
            bytes=checker.bytes,
            dropped={reason: n for reason, n in counts.items() if n},
            latency_us=checker.take_latency_us(),
            torn=checker.torn,
            lease=str(lease.lease_id) if lease is not None and lease.lease_id else None,
            epoch=str(consumer.epoch) if consumer.epoch else None,
        )
    )


if __name__ == "__main__":
    run_viewer(parse_options(), ReportWriter())
