"""Where `tensorpool top` has its snapshots from: a picture of its own, whether a supervisor runs or not."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Final

from ..context import Context
from ..monitor import LedgerMonitor
from ..monitor.listener import SystemMonitor, model_limits
from ..monitor.snapshot import Snapshot, StreamView

# Rates need two reports of everybody.
_PERIODS: Final = 2.5


class WatcherFeed:
    """Ears and a picture on a context. `own` are consumers of ours, which nobody wants to see."""

    def __init__(self, context: Context) -> None:
        self._watcher = SystemMonitor(context, audit=LedgerMonitor(model_limits(context)))
        bounds = self._watcher.bounds
        self._settle_s = _PERIODS * max(bounds.announce_period_ns, bounds.report_period_ns) / 1e9
        self.own: set[int] = set()

    def poll(self) -> int:
        return self._watcher.poll()

    def snapshot(self) -> Snapshot:
        found = self._watcher.snapshot()
        return without(found, self.own) if self.own else found

    def is_settled(self, listened_s: float) -> bool:
        return listened_s >= self._settle_s

    def close(self) -> None:
        self._watcher.close()


def without(snapshot: Snapshot, consumer_ids: set[int]) -> Snapshot:
    """The same without these consumers."""
    return replace(snapshot, streams=tuple(_without(one, consumer_ids) for one in snapshot.streams))


def _without(stream: StreamView, consumer_ids: set[int]) -> StreamView:
    left = tuple(one for one in stream.consumers if one.consumer_id not in consumer_ids)
    if len(left) == len(stream.consumers):
        return stream
    dropped: Counter[str] = Counter()
    for one in left:
        dropped.update(one.dropped)
    return replace(stream, consumers=left, dropped=dropped)
