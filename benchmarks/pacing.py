"""A thread that repeats a call at a rate, for benchmarks and for tests of the console."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_MAX_CATCH_UP_S: Final = 0.2


@contextmanager
def repeating(call: Callable[[], object], hz: float) -> Iterator[None]:
    """Calls `call` `hz` times a second on a thread of its own, until the block ends.

    Calls that are late are made up for, up to `_MAX_CATCH_UP_S`: a longer pause of the machine must not end
    in a burst.
    """
    stop = threading.Event()

    def run() -> None:
        due = time.monotonic()
        while not stop.is_set():
            call()
            due = max(due + 1 / hz, time.monotonic() - _MAX_CATCH_UP_S)
            stop.wait(max(0.0, due - time.monotonic()))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
