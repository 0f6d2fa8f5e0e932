"""How often somebody may ask. Pure: the time is handed in."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

_SECOND_NS: Final = 1_000_000_000
_MAX_CLIENTS: Final = 4096


class Bucket:
    """Fills with `rate_hz` tokens a second, up to `burst`; each question takes one."""

    __slots__ = ("_at_ns", "_burst_ns", "_cost_ns", "_saved_ns")

    def __init__(self, rate_hz: int, burst: int, now_ns: int) -> None:
        self._cost_ns = _SECOND_NS // rate_hz
        self._burst_ns = burst * self._cost_ns
        self._saved_ns = self._burst_ns
        self._at_ns = now_ns

    def take(self, now_ns: int) -> bool:
        self._saved_ns = min(self._burst_ns, self._saved_ns + max(0, now_ns - self._at_ns))
        self._at_ns = now_ns
        if self._saved_ns < self._cost_ns:
            return False
        self._saved_ns -= self._cost_ns
        return True


class ClientLimits:
    """A bucket for each client id, for the last few thousand of them. Ids are self-chosen, so that a
    limit for all together stands beside it."""

    def __init__(self, rate_hz: int, burst: int, *, most: int = _MAX_CLIENTS) -> None:
        self._rate_hz = rate_hz
        self._burst = burst
        self._most = most
        self._buckets: OrderedDict[int, Bucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, client_id: int, now_ns: int) -> bool:
        bucket = self._buckets.get(client_id)
        if bucket is None:
            bucket = self._buckets[client_id] = Bucket(self._rate_hz, self._burst, now_ns)
            if len(self._buckets) > self._most:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(client_id)
        return bucket.take(now_ns)
