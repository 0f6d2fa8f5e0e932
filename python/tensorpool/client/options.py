"""What attachments tell those who watch, apart from what the wire has messages for.

What consumers may wish for, and what producers grant them: streams of their own, a rate, progress.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .. import _native
from ..errors import ConfigError


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """What is told: latency and account on the status stream, a few counters in the media driver."""

    latency: bool
    counters: bool
    accounts: bool = True

    def begin(
        self, endpoint: _native.Producer | _native.Consumer, status: tuple[str, int], period_ns: int
    ) -> _native.Reporter | None:
        """Tells of `endpoint` until it is closed; None if there is nothing to tell."""
        # A part of the status report.
        tells_latency = self.latency and self.accounts and isinstance(endpoint, _native.Consumer)
        if not (self.counters or self.accounts):
            return None
        return _native.Reporter(
            endpoint,
            status=status if self.accounts else None,
            latency=tells_latency,
            account=self.accounts,
            counters=self.counters,
            period_ns=period_ns,
        )


_MAX_RATE_HZ = 0xFFFF_FFFE
_MAX_HINT = 0xFFFF_FFFE


@dataclass(frozen=True, slots=True)
class PerConsumerStreams:
    """Where streams for single consumers are: on these channels, with ids of these ranges."""

    channels: tuple[str, ...]
    descriptor_ids: tuple[int, int]
    control_ids: tuple[int, int]
    period_ns: int
    """How often consumers say hello and report; five times that is silence."""
    progress_interval_ns: int
    progress_bytes: int
    """The progress of a frame is told no more often, and for no less, whoever asks."""

    @property
    def grants(self) -> dict[str, Any]:
        """What a producer allows."""
        return {
            "channels": list(self.channels),
            "descriptor_ids": self.descriptor_ids,
            "control_ids": self.control_ids,
            "stale_ns": 5 * self.period_ns,
            "progress_interval_us": -(-self.progress_interval_ns // 1000),
            "progress_bytes": self.progress_bytes,
        }

    def wishes(
        self,
        *,
        max_rate_hz: int | None = None,
        own_stream: bool = False,
        progress: bool = False,
        progress_interval_us: int | None = None,
        progress_bytes: int | None = None,
        progress_rows: int | None = None,
    ) -> dict[str, Any]:
        """What a consumer asks for."""
        if max_rate_hz is not None and not 0 < max_rate_hz <= _MAX_RATE_HZ:
            raise ConfigError(f"max_rate_hz {max_rate_hz}: use a whole number of frames a second, as in 25")
        hints = {
            "progress_interval_us": progress_interval_us,
            "progress_bytes": progress_bytes,
            "progress_rows": progress_rows,
        }
        for name, hint in hints.items():
            if hint is not None and not progress:
                raise ConfigError(f"{name} {hint}: only with progress=True")
            if hint is not None and not 0 <= hint <= _MAX_HINT:
                raise ConfigError(f"{name} {hint}: use a whole number from 0 to {_MAX_HINT}")
        wants_descriptors = own_stream or max_rate_hz is not None
        channel = self.channels[0] if self.channels else "aeron:ipc"
        return {
            "rate_limited": max_rate_hz is not None,
            "max_rate_hz": max_rate_hz or 0,
            "supports_progress": progress,
            "progress_interval_us": progress_interval_us,
            "progress_bytes_delta": progress_bytes,
            "progress_major_delta_units": progress_rows,
            "descriptor": (channel, *self.descriptor_ids) if wants_descriptors else None,
            "control": (channel, *self.control_ids) if progress else None,
        }
