"""Limits on requests: how many a second are handled, and which wait when there are more. Pure.

All clients of a host usually share one Aeron publication, so the sender of a request is unknown and cannot be
limited alone. But a client repeats a request that got no answer, unchanged, after 100 ms. So while requests
come faster than the limit, or reservations pile up, a request is not handled at once but remembered, and
handled when it is repeated. A sender that never repeats gets nothing; a client gets its lease one repetition
later. What the driver remembers is bounded.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

SECOND_NS: Final = 1_000_000_000
# A repetition that comes sooner is a second copy of a flood, not a client that waited for an answer.
_MIN_REPEAT_NS: Final = 50_000_000
# At 100,000 requests a second, those of the last third of a second.
_MAX_REMEMBERED: Final = 32_768
# Repeated requests a second, as a share of the limit: the driver has to stay able to answer them.
_REPEAT_SHARE: Final = 2
_MAX_IMAGES: Final = 1024


class RateLimit:
    """A number of events a second. Up to `burst` that were not used are kept for later."""

    def __init__(self, per_second: int, burst: int) -> None:
        self._interval_ns = max(1, SECOND_NS // per_second)
        self._burst_ns = burst * self._interval_ns
        self._next_ns: int | None = None
        """When the next event would be due at a steady rate; before the present while some are left."""

    def take(self, now_ns: int) -> bool:
        """Whether one more event is within the limit. Counts it if so."""
        earliest_ns = now_ns - self._burst_ns
        due_ns = earliest_ns if self._next_ns is None else max(self._next_ns, earliest_ns)
        if due_ns > now_ns:
            return False
        self._next_ns = due_ns + self._interval_ns
        return True


class RequestLimiter:
    """Decides for each request whether it is handled now, or only when it is repeated."""

    def __init__(self, per_second: int, per_image: int) -> None:
        self._per_image = per_image
        self._all = RateLimit(per_second, burst=2 * per_second)
        self._repeats = RateLimit(max(1, per_second // _REPEAT_SHARE), burst=per_second)
        self._images: OrderedDict[int, RateLimit] = OrderedDict()
        self._first_seen: OrderedDict[int, int] = OrderedDict()

    @property
    def remembered(self) -> int:
        """The number of requests that wait for their repetition."""
        return len(self._first_seen)

    def admits(self, message: bytes, image: int, now_ns: int, *, is_pressed: bool) -> bool:
        """Whether to handle a request of an Aeron image now. `is_pressed`: reservations have piled up."""
        if not is_pressed and self._image(image).take(now_ns) and self._all.take(now_ns):
            return True
        return self.is_repetition(message, now_ns) and self._repeats.take(now_ns)

    def is_repetition(self, message: bytes, now_ns: int) -> bool:
        """Whether the request came before, long enough ago. Remembers it if not."""
        # Repetitions are unchanged, so they have the same hash. It differs between processes, and cannot be
        # foreseen.
        key = hash(message)
        seen_ns = self._first_seen.get(key)
        if seen_ns is None:
            self._first_seen[key] = now_ns
            if len(self._first_seen) > _MAX_REMEMBERED:
                self._first_seen.popitem(last=False)
            return False
        return now_ns - seen_ns >= _MIN_REPEAT_NS

    def forget_old(self, now_ns: int, max_age_ns: int) -> None:
        """Forgets requests that were not repeated in time, and images that sent none."""
        while self._first_seen and next(iter(self._first_seen.values())) < now_ns - max_age_ns:
            self._first_seen.popitem(last=False)

    def _image(self, image: int) -> RateLimit:
        limit = self._images.get(image)
        if limit is None:
            limit = self._images[image] = RateLimit(self._per_image, burst=2 * self._per_image)
            if len(self._images) > _MAX_IMAGES:
                self._images.popitem(last=False)
        self._images.move_to_end(image)
        return limit
