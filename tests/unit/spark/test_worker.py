"""A process of Spark's daemon, once it has done its first task, has next to nothing to collect."""

from __future__ import annotations

import subprocess
import sys
import textwrap

_PROGRAM = """
    import gc, sys, types
    from importlib.machinery import ModuleSpec
    from tensorpool.spark.worker import settle

    settle()
    print(gc.get_freeze_count())
    sys.modules["__main__"].__spec__ = ModuleSpec("pyspark.daemon", None)
    settle()
    first = gc.get_freeze_count()
    held = [[] for _ in range(1000)]
    settle()
    print(first > 10_000, gc.get_freeze_count() == first)
"""


def test_only_the_daemons_children_settle_and_only_once() -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_PROGRAM)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["0", "True", "True"]
