"""What attachments tell those who watch, apart from what the wire has messages for."""

from __future__ import annotations

from dataclasses import dataclass

from .. import _native


@dataclass(frozen=True, slots=True)
class Reports:
    """What is told: latency and account on the status stream, a few counters in the media driver."""

    latency: bool
    counters: bool
    accounts: bool = True

    def begin(
        self, endpoint: _native.Producer | _native.Consumer, status: tuple[str, int], period_ns: int
    ) -> _native.Reporter | None:
        """Tells of `endpoint` until it is closed; None if there is nothing to tell."""
        tells_latency = self.latency and isinstance(endpoint, _native.Consumer)
        if not (tells_latency or self.counters or self.accounts):
            return None
        return _native.Reporter(
            endpoint,
            status=status if tells_latency or self.accounts else None,
            latency=tells_latency,
            account=self.accounts,
            counters=self.counters,
            period_ns=period_ns,
        )
