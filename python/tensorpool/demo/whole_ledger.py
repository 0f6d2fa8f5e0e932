"""The ledger of the whole system, at the end of a demo: what everybody told, joined by a mere listener."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.table import Table

from ..client import ReportOptions
from ..context import Context
from ..context import open as open_context
from ..monitor import LedgerRow, LiveLedger, Verdict

_TURN_S = 0.02
_SETTLE_S = 20.0


class WholeLedger:
    """Listens on a thread of its own, so that no last word is missed while others are waited for."""

    def __init__(self, context: Context) -> None:
        self._live = LiveLedger(context)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="whole-ledger", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while not self._stop.wait(_TURN_S):
            with self._lock:
                self._live.poll()

    def rows(self) -> list[LedgerRow]:
        """When the figures have settled."""
        with self._lock:
            return self._live.settle(_SETTLE_S)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._live.close()


@contextmanager
def listening(aeron_dir: str) -> Iterator[WholeLedger]:
    """On the media driver of a demo, without taking part in it."""
    with open_context("standalone", aeron_dir=aeron_dir, media_driver="external") as ctx:
        ctx._reports = ReportOptions(latency=False, counters=False, accounts=False)
        whole = WholeLedger(ctx)
        try:
            yield whole
        finally:
            whole.close()


def of_host(context: Context) -> list[LedgerRow]:
    """By one that takes part there."""
    with LiveLedger(context) as ledger:
        return ledger.settle(_SETTLE_S)


def whole_faults(rows: Sequence[LedgerRow]) -> list[str]:
    """Why it is not exact."""
    fine = (Verdict.EXACT, Verdict.GONE)
    return [
        f"whole system: stream {row.stream_id}, {row.path} {row.who}: {row.problem or row.verdict}"
        for row in rows
        if row.verdict not in fine
    ]


def whole_table(rows: Sequence[LedgerRow]) -> Table:
    table = Table(title="the whole system: published = delivered + dropped", title_justify="left", box=None)
    for name in ("stream", "path", "who", "published", "delivered", "dropped", ""):
        table.add_column(name, justify="right" if name in ("stream", "published", "delivered") else "left")
    for row in rows:
        dropped = ", ".join(f"{reason} {count:,}" for reason, count in sorted(row.dropped.items()) if count)
        published, delivered = f"{row.published:,}", f"{row.delivered:,}"
        table.add_row(str(row.stream_id), row.path, row.who, published, delivered, dropped, str(row.verdict))
    return table
