"""After its first task, a Spark worker has little garbage to collect and keeps its mapped files."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

_PROGRAM = """
    import gc, sys, types
    from importlib.machinery import ModuleSpec
    from pathlib import Path
    from tensorpool.recording.segment_file import map_file
    from tensorpool.spark.scan import tune_worker

    path = Path(sys.argv[1])

    def is_mapped():
        return str(path) in Path("/proc/self/maps").read_text()

    def map_segment():
        with path.open("rb") as file:
            map_file(file.fileno(), path)

    tune_worker()
    map_segment()
    print(gc.get_freeze_count(), is_mapped())
    sys.modules["__main__"].__spec__ = ModuleSpec("pyspark.daemon", None)
    tune_worker()
    first = gc.get_freeze_count()
    held = [[] for _ in range(1000)]
    map_segment()
    tune_worker()
    print(first > 10_000, gc.get_freeze_count() == first, is_mapped())
    path.unlink()
    tune_worker()
    print(is_mapped())
"""


def test_worker_is_tuned_once_in_a_spark_daemon_only(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(b"x")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_PROGRAM), str(path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["0", "False", "True", "True", "True", "False"]
