"""How long the picture remembers what is not said again, and how much of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long is remembered what is not said again, and how much."""

    announce_period_ns: int = 1_000_000_000
    report_period_ns: int = 1_000_000_000
    max_streams: int = 20_000
    max_consumers: int = 100_000

    @property
    def stale_ns(self) -> int:
        return 3 * self.announce_period_ns

    @property
    def forget_stream_ns(self) -> int:
        """A stream that is gone is shown as stale for a while."""
        return 30 * self.announce_period_ns

    @property
    def forget_consumer_ns(self) -> int:
        """As its producer does."""
        return 5 * self.report_period_ns

    @property
    def forget_former_ns(self) -> int:
        """Sooner where the stream has begun anew: those who are there have another id by then."""
        return 2 * self.report_period_ns

    @property
    def quiet_ns(self) -> int:
        return 3 * self.report_period_ns

    @property
    def awake_ns(self) -> int:
        """Who did not listen for that long has slept; all have spoken when it has listened as long again."""
        return 2 * max(self.announce_period_ns, self.report_period_ns)

    @property
    def forget_service_ns(self) -> int:
        return 15 * self.report_period_ns
