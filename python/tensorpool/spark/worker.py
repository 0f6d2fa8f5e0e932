"""Tuning of Spark's Python worker processes: garbage collection and cached mappings."""

from __future__ import annotations

import gc
import sys
from typing import Final

from ..recording.mmap_cache import enable_cache, evict_removed

_DAEMON: Final = "pyspark.daemon"
_is_tuned = False


def tune_worker() -> None:
    """Tunes this process when a task ends. Does nothing outside of Spark's Python workers.

    The first call excludes all present objects from garbage collection: Spark's daemon collects garbage after
    every task, and visiting every object of every module takes longer than most tasks. It also enables the
    cache of mapped segments for later tasks. Every call evicts removed segments from the cache. Spark ends a
    process that is idle for a minute.
    """
    global _is_tuned  # noqa: PLW0603  one collector per process
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is None or spec.name != _DAEMON:
        return
    evict_removed()
    if _is_tuned:
        return
    _is_tuned = True
    enable_cache()
    gc.collect()
    gc.freeze()
