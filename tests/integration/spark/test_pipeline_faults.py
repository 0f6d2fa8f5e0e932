"""What goes wrong on the way to the tables, on a real Spark: each row of the reference's table of faults."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tensorpool.errors import DiskFull, LockHeld, PipelineError
from tensorpool.pipeline import run
from tensorpool.pipeline.run import _held
from tests.unit.pipeline.conftest import _arrows_threads  # noqa: F401  a fixture
from tests.unit.pipeline.harness import Stages, define, keys, record, table
from tests.unit.spark.conftest import write

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore::ResourceWarning")]

FEW: dict[str, Any] = {"quality": {"enabled": False}, "statistics": {"enabled": False}}
"""Stages that have nothing to do with it."""


def test_frames_that_were_removed_or_damaged_are_gaps_or_the_end_as_the_definition_says(
    spark: SparkSession, root: Path, out: Path
) -> None:
    write(root, range(50), per_segment=10)
    segments = sorted(root.glob("stream=*/epoch=*/*.arrows"))
    segments[1].unlink()
    content = bytearray(segments[3].read_bytes())
    content[len(content) // 10] ^= 0xFF
    segments[3].write_bytes(content)
    strict = define(root, out.with_name("strict"), fail_on_loss=True, **FEW)
    with pytest.raises(PipelineError, match=r"What the tables have stays"):
        run(strict, spark=spark)
    settings = define(root, out, **FEW)
    run(settings, spark=spark)
    rows = table(settings, "silver/frames")
    lost: Counter[str] = Counter()
    for row in table(settings, "silver/gaps"):
        lost[row["reason"]] += row["count"]
    # Where one read meets both, the source may call both by one name.
    assert set(lost) <= {"removed", "corrupt"}
    assert (len(rows), sum(lost.values())) == (30, 20)
    # A stream that appears is taken from its first frame, and the others go on.
    write(root, range(50, 55))
    write(root, range(7), stream_id=77)
    run(settings, spark=spark)
    found = Counter(row["stream_id"] for row in table(settings, "silver/frames"))
    assert found == {10_000: len(rows) + 5, 77: 7}


def test_tables_and_another_checkpoint_do_not_go_together(spark: SparkSession, root: Path, out: Path) -> None:
    record(root, range(20))
    settings = define(root, out, max_rows=10, **FEW)
    run(settings, spark=spark)
    shutil.copytree(out / "_checkpoint", out.parent / "older")
    record(root, range(20, 30))
    run(settings, spark=spark)
    shutil.rmtree(out / "_checkpoint")
    shutil.move(out.parent / "older", out / "_checkpoint")
    with pytest.raises(PipelineError, match="it is an old copy"):
        run(settings, spark=spark)
    assert keys(table(settings, "bronze/frames")) == [(10, 1, seq) for seq in range(30)]


def test_a_second_pipeline_on_a_root_does_not_even_begin(root: Path, out: Path) -> None:
    record(root, range(5))
    settings = define(root, out, **FEW)
    Stages(settings).take_all()
    # It is refused before there is a Spark, and changes nothing.
    before = settings.out.joinpath("pipeline.json").read_bytes()
    other = define(root, out, max_rows=7)
    with _held(out), pytest.raises(LockHeld, match=r"another pipeline works on .* process \d+"):
        run(other, master="spark://nowhere:1")
    assert settings.out.joinpath("pipeline.json").read_bytes() == before


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of one megabyte."""
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs", str(place)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"a tmpfs cannot be mounted here (it takes root): {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.mark.parametrize("by_spark", [False, True])
def test_a_full_disk_ends_the_run_and_room_lets_it_go_on(
    spark: SparkSession, small: Path, root: Path, by_spark: bool
) -> None:
    record(root, range(60), shape=(64, 256))
    settings = define(root, small / "tables", payload="inline", target_file="256KiB", max_rows=20, **FEW)

    def go() -> None:
        if by_spark:
            run(settings, spark=spark)
        else:
            Stages(settings).take_all(pieces=3)

    with pytest.raises(PipelineError if by_spark else DiskFull, match="free some disk space"):
        go()
    before = keys(table(settings, "silver/frames"))
    assert len(set(before)) == len(before) < 60
    subprocess.run(["mount", "-o", "remount,size=64m", str(small)], check=True)
    go()
    assert keys(table(settings, "silver/frames")) == [(10, 1, seq) for seq in range(60)]
