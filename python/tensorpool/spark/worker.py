"""What is told to Spark's Python processes for their own good."""

from __future__ import annotations

import gc
import sys
from typing import Final

from ..recording.mmap_cache import enable_cache, evict_removed

_DAEMON: Final = "pyspark.daemon"
_is_settled = False


def tune_worker() -> None:
    """Called when a task ends. A process that is not the daemon's child is left alone.

    Once a process, what is loaded by now is taken out of garbage collection: Spark's daemon collects garbage
    after every task, and looks at every object of every module for it, which takes longer than most tasks do.
    From then on mapped segments are kept for the next task, as long as they are there. Spark ends a process
    that has nothing to do for a minute.
    """
    global _is_settled  # noqa: PLW0603  one collector a process
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is None or spec.name != _DAEMON:
        return
    evict_removed()
    if _is_settled:
        return
    _is_settled = True
    enable_cache()
    gc.collect()
    gc.freeze()
