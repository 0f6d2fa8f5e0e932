"""A ledger that somebody else keeps by the way: a supervisor, the metrics, `tensorpool top`. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from ..supervisor.bounds import Bounds
from ..supervisor.views import LedgerView, MismatchView
from .book import LedgerBook
from .rows import Verdict

_LOOK_PERIODS: Final = 5
"""A whole ledger may be thousands of rows."""
_FORGET_PERIODS: Final = 300
_MOST_SHOWN: Final = 64


class LedgerAudit:
    """Give it to a picture: its snapshots then say whether every frame is accounted for."""

    def __init__(self, bounds: Bounds) -> None:
        self._period_ns = bounds.report_period_ns
        self.book = LedgerBook(settle_ns=3 * self._period_ns, silent_ns=5 * self._period_ns)
        self._latest = LedgerView()
        self._next_look_ns = 0

    def handler(self, kind: type) -> Callable[[Any, int], None] | None:
        return self.book.handler(kind)

    def look(self, now_ns: int) -> LedgerView:
        """As it was found within the last periods."""
        if now_ns < self._next_look_ns:
            return self._latest
        self.book.forget(now_ns - _FORGET_PERIODS * self._period_ns)
        rows = self.book.rows(now_ns)
        found = Counter(str(row.verdict) for row in rows)
        # What does not fit is looked at closely: only what lasts is a mismatch, not what comes twice.
        is_close = found[Verdict.SETTLING] or found[Verdict.MISMATCH]
        self._next_look_ns = now_ns + (1 if is_close else _LOOK_PERIODS) * self._period_ns
        wrong = [row for row in rows if row.verdict is Verdict.MISMATCH][:_MOST_SHOWN]
        self._latest = LedgerView(
            {str(one): found[one] for one in Verdict},
            tuple(MismatchView(row.stream_id, row.path, row.who, row.problem) for row in wrong),
        )
        return self._latest
