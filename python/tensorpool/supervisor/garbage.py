"""Python's collector, for commands that are there to keep a picture."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_NEW_OBJECTS: Final = 100_000


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """For a command's whole run, once it has imported what it needs.

    A picture replaces tens of thousands of objects a second, none of them in a cycle. Looking for cycles
    among them all, again and again, took a quarter of the time of a supervisor of a thousand streams.
    """
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS, 10, 10)
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
