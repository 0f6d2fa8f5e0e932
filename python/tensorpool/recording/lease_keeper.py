"""A replay's claim on what it has yet to play: a reader's lease, where the recording can be written to."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from ..clock import Clock
from ..errors import WriteFailed
from .frame import Cursor
from .leases import ReaderLease

_LOG = logging.getLogger(__name__)
# A third of the time that a lease lasts.
_PERIOD_NS: Final = 20_000_000_000


class LeaseKeeper:
    """Keeps retention from the streams that are played. A recording that is read-only has no retention."""

    def __init__(self, root: Path, stream_ids: Iterable[int], clock: Clock) -> None:
        self._lease: ReaderLease | None = None
        self._next_ns = clock.monotonic_ns() + _PERIOD_NS
        try:
            self._lease = ReaderLease(root, stream_ids, holder="replay", clock=clock)
        except (WriteFailed, OSError) as error:
            _LOG.info("%s is played without a lease: %s", root, error)

    def keep(self, now_ns: int, played: Iterable[Cursor]) -> None:
        """Renews it when that is due, and lets go of what was played."""
        if self._lease is None or now_ns < self._next_ns:
            return
        self._next_ns = now_ns + _PERIOD_NS
        try:
            self._lease.renew(played)
        except (WriteFailed, OSError) as error:
            _LOG.warning("the lease on the recording could not be renewed: %s", error)

    def release(self) -> None:
        if self._lease is not None:
            self._lease.release()
