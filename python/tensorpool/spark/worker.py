"""What is told to Spark's Python processes for their own good."""

from __future__ import annotations

import gc
import sys
from typing import Final

_DAEMON: Final = "pyspark.daemon"
_is_settled = False


def settle() -> None:
    """Takes what is loaded by now out of garbage collection, once a process; called when a task ends.

    Spark's daemon collects garbage after every task, and looks at every object of every module for it: that
    takes longer than most tasks do. A process that is not the daemon's child is left alone.
    """
    global _is_settled  # noqa: PLW0603  one collector a process
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if _is_settled or spec is None or spec.name != _DAEMON:
        return
    _is_settled = True
    gc.collect()
    gc.freeze()
