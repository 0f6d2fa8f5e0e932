"""Faults of a pipeline on a real Spark: each row of the table of faults in the reference."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tensorpool.errors import DiskFull, PipelineError
from tensorpool.pipeline import run
from tests.unit.pipeline.conftest import arrows_threads  # noqa: F401  a fixture
from tests.unit.pipeline.harness import Stages, define, keys, record, table
from tests.unit.spark.conftest import write

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore::ResourceWarning")]

FEW: dict[str, Any] = {"quality": {"enabled": False}, "statistics": {"enabled": False}}
"""Without the stages that the tests do not need."""


def test_removed_or_damaged_frames_are_gaps_or_an_error(spark: SparkSession, root: Path, out: Path) -> None:
    write(root, range(50), per_segment=10)
    segments = sorted(root.glob("stream=*/epoch=*/*.arrows"))
    segments[1].unlink()
    content = bytearray(segments[3].read_bytes())
    content[len(content) // 10] ^= 0xFF
    segments[3].write_bytes(content)
    strict = define(root, out.with_name("strict"), fail_on_loss=True, **FEW)
    with pytest.raises(PipelineError, match=r"The tables stay valid"):
        run(strict, spark=spark)
    settings = define(root, out, **FEW)
    run(settings, spark=spark)
    rows = table(settings, "silver/frames")
    lost: Counter[str] = Counter()
    for row in table(settings, "silver/gaps"):
        lost[row["reason"]] += row["count"]
    # If one task meets both, the source may report one reason for both.
    assert set(lost) <= {"removed", "corrupt"}
    assert (len(rows), sum(lost.values())) == (30, 20)
    # A new stream is read from its first frame, and the others continue.
    write(root, range(50, 55))
    write(root, range(7), stream_id=77)
    run(settings, spark=spark)
    found = Counter(row["stream_id"] for row in table(settings, "silver/frames"))
    assert found == {10_000: len(rows) + 5, 77: 7}


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of one megabyte."""
    mount_point = tmp_path / "small"
    mount_point.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs", str(mount_point)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"a tmpfs cannot be mounted here (it takes root): {done.stderr.strip()}")
    yield mount_point
    subprocess.run(["umount", "--lazy", str(mount_point)], check=True)


@pytest.mark.parametrize("by_spark", [False, True])
def test_run_continues_after_a_full_disk(
    spark: SparkSession, small: Path, root: Path, by_spark: bool
) -> None:
    record(root, range(60), shape=(64, 256))
    settings = define(root, small / "tables", payload="inline", target_file="256KiB", max_rows=20, **FEW)

    def run_pipeline() -> None:
        if by_spark:
            run(settings, spark=spark)
        else:
            Stages(settings).take_all()

    with pytest.raises(PipelineError if by_spark else DiskFull, match="free some disk space"):
        run_pipeline()
    before = keys(table(settings, "silver/frames"))
    assert len(set(before)) == len(before) < 60
    subprocess.run(["mount", "-o", "remount,size=64m", str(small)], check=True)
    run_pipeline()
    assert keys(table(settings, "silver/frames")) == [(10, 1, seq) for seq in range(60)]
