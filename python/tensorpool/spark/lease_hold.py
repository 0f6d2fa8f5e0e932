"""A query's lease on what it has still to read: retention leaves that alone while the query lives.

A thread renews it, since a micro-batch may take longer than the lease. The thread dies with the process, and
the lease with its deadline.
"""

from __future__ import annotations

import logging
import threading
from typing import Final

from ..errors import ClosedError, RecordingError
from ..recording import Cursor, ReaderLease
from .offsets import Offsets

_LOG: Final = logging.getLogger(__name__)
_RENEWALS: Final = 3
"""So many times within its life a lease is renewed: one may fail, and a second one."""


class RenewingLease:
    """Keeps what lies behind some places. One that cannot be had is said once, and reading goes on
    without."""

    def __init__(self, path: str, *, holder: str, ttl_ns: int) -> None:
        self._path = path
        self._holder = holder
        self._ttl_ns = ttl_ns
        self._lease: ReaderLease | None = None
        self._complained = False
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def keep(self, places: Offsets) -> None:
        """From now on, what lies behind these places is kept, and what lies before is not."""
        cursors = [place.cursor_before(stream) or stream for stream, place in places.items()]
        with self._lock:
            self._renew(cursors)
        if self._thread is None and self._lease is not None:
            self._thread = threading.Thread(target=self._run, name="spark-lease", daemon=True)
            self._thread.start()

    def _renew(self, cursors: list[Cursor | int]) -> None:
        try:
            if self._lease is None:
                self._lease = ReaderLease(self._path, cursors, holder=self._holder, ttl_ns=self._ttl_ns)
            else:
                self._lease.renew(cursors)
            self._complained = False
        except ClosedError:
            return
        except (OSError, RecordingError) as error:
            # A recording that cannot be written to can still be read.
            if not self._complained:
                _LOG.warning(
                    "no lease on %s, so retention may remove what is not read yet: %s", self._path, error
                )
            self._complained = True

    def _run(self) -> None:
        while not self._end.wait(self._ttl_ns / 1e9 / _RENEWALS):
            with self._lock:
                self._renew([])

    def release(self) -> None:
        self._end.set()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            if self._lease is not None:
                self._lease.release()
