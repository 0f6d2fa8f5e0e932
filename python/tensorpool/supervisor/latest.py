"""A picture that one thread keeps, and that any thread may look at."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ..clock import Clock
from .picture import Picture
from .views import Snapshot


class Latest:
    """Snapshots are made when somebody wants one: of thousands, nobody looks at most of them."""

    def __init__(self, picture: Picture, fresh_ns: int, clock: Clock) -> None:
        self._picture = picture
        self._fresh_ns = fresh_ns
        self._clock = clock
        self.lock = threading.RLock()
        """The keeper has it while it changes the picture, and may look meanwhile."""
        self._snapshot = Snapshot(clock.monotonic_ns())
        self._heard_ns: int | None = None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """The keeper listens; whoever looks waits until it has."""
        with self.lock:
            yield
            self._heard_ns = self._clock.monotonic_ns()

    def __call__(self) -> Snapshot:
        """As it was when its keeper listened last, or shortly before that."""
        with self.lock:
            # Not of now: a keeper that sleeps has heard nobody, and nobody may be taken for silent.
            if self._heard_ns is not None and self._heard_ns - self._snapshot.now_ns >= self._fresh_ns:
                self._snapshot = self._picture.snapshot(self._heard_ns)
            return self._snapshot
