"""The ledger of what runs around a context: ears, a book, and the wait until the figures fit."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from ..clock import SYSTEM_CLOCK, Clock
from ..context import Context
from ..supervisor.ears import Watcher
from .book import LedgerBook
from .rows import Row, Verdict

_OPEN: Final = frozenset({Verdict.SETTLING, Verdict.WAITING})


class LiveLedger:
    """Listens to everybody who tells. Poll it, or `settle` and read the `rows`."""

    def __init__(self, context: Context, *, clock: Clock = SYSTEM_CLOCK) -> None:
        period_ns = context._streams.period_ns
        self._clock = clock
        self._period_s = period_ns / 1e9
        self._settle_s = 3 * self._period_s
        self.book = LedgerBook(settle_ns=3 * period_ns, silent_ns=5 * period_ns)
        self.watcher = Watcher(context, observers=(self.book,), clock=clock)

    def poll(self) -> int:
        return self.watcher.poll()

    def rows(self) -> list[Row]:
        return self.book.rows(self._clock.monotonic_ns())

    def listen(self, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        return self.watcher.watch(seconds, until)

    def settle(self, timeout: float) -> list[Row]:
        """Hears everybody at least twice, then waits until all is exact, or was wrong for long enough."""
        self.listen(min(2.5 * self._period_s, timeout))
        self.listen(max(timeout - 2.5 * self._period_s, 0), until=self._is_settled)
        return self.rows()

    def _is_settled(self) -> bool:
        return not any(row.verdict in _OPEN for row in self.rows())

    def close(self) -> None:
        self.watcher.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
