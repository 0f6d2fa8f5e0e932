"""Pipelines on a real Spark: growing recordings, errors of users, full disks, kills on a cluster."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import tensorpool as tp
from tensorpool import recording
from tensorpool.errors import DiskFull, PipelineError
from tensorpool.pipeline import run, status
from tests.integration.spark.conftest import ROOT
from tests.unit.pipeline.conftest import _arrows_threads  # noqa: F401  a fixture
from tests.unit.pipeline.support import Stages, define, keys, record, table

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore::ResourceWarning")]

ALIGNMENT = [{"name": "stereo", "streams": [10, 11], "tolerance": "1ms"}]
QUALITY = {"interval": "500ms", "lateness": "100ms"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "recording"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "tables"


def dark(array: Any) -> Any:
    if array.max() == 77:
        raise ZeroDivisionError("too dark")
    return float(array.mean())


def test_a_growing_recording_becomes_tables_that_spark_reads_plainly(
    spark: SparkSession, root: Path, out: Path
) -> None:
    record(root, range(150))
    record(root, range(0, 150, 2), stream_id=11, shift_ns=1000)
    settings = define(
        root, out, max_rows=120, trigger="100ms", alignments=ALIGNMENT, quality=QUALITY,
        functions=[
            {"name": "looks", "function": "a:b", "columns": "mean double"},
            {"name": "rows", "function": "a:b", "output": "recording"},
        ],
    )  # fmt: skip
    functions = {"looks": lambda array: float(array.mean()), "rows": lambda array: array[:1]}
    seen: list[Any] = []
    found = run(settings, spark=spark, callables=functions, look=lambda at, behind: seen.append(at))
    assert found.stages["bronze"].batch >= 1, "in several micro-batches"
    assert found.stages["silver"].totals["frames"] == 225
    assert seen
    record(root, range(150, 200))
    record(root, range(150, 200, 2), stream_id=11, shift_ns=1000)
    run(settings, spark=spark, callables=functions)
    # And once more, until told to stop.
    record(root, range(200, 220))
    until = found.stages["silver"].totals["frames"] + 95
    run(
        settings, spark=spark, callables=functions, once=False,
        stop=lambda: status(out).stages["gold"].batch >= 0
        and status(out).stages["silver"].totals["frames"] >= until,
    )  # fmt: skip
    for name in ("bronze/frames", "silver/frames", "gold/looks", "gold/statistics"):
        rows = spark.read.parquet(str(out / name))
        assert rows.count() == rows.select("stream_id", "epoch", "seq").distinct().count() == 320, name
    aligned = spark.read.parquet(str(out / "silver/aligned/stereo"))
    assert sorted(row[0] for row in aligned.selectExpr("frames[0].seq").collect()) == list(range(0, 200, 2))
    quality = spark.read.parquet(str(out / "gold/quality"))
    sums = quality.selectExpr(
        "sum(frames)", "sum(dropped)", "sum(drops['unexplained'])", "sum(drops['not_recording'])"
    )
    # One is missing between two writers of the recording.
    assert tuple(sums.collect()[0]) == (320, 99, 98, 1)
    with recording.open(out / "derived" / "rows") as opened:
        assert [one.rows for stream in opened.streams for one in opened.ledger(stream)] == [220, 100]
    assert not list((out / "_staging").glob("*"))
    # Tables and checkpoint go together.
    shutil.move(out / "_checkpoint", out.parent / "away")
    with pytest.raises(PipelineError, match="checkpoint beside them is gone"):
        run(settings, spark=spark, callables=functions)


def test_an_error_of_a_function_names_the_frame_and_a_mended_one_goes_on(
    spark: SparkSession, root: Path, out: Path
) -> None:
    record(root, range(100))
    settings = define(root, out, functions=[{"name": "dark", "function": "a:b", "columns": "mean double"}])
    with pytest.raises(PipelineError, match=r"frame 77: ZeroDivisionError: too dark"):
        run(settings, spark=spark, callables={"dark": dark})
    run(settings, spark=spark, callables={"dark": lambda array: float(array.mean())})
    assert keys(table(settings, "gold/dark")) == [(10, 1, seq) for seq in range(100)]


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.usefixtures("spark")
def test_delta_tables_have_each_batch_once(root: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deltalake = pytest.importorskip("deltalake")
    record(root, range(50))
    settings = define(root, out, format="delta")
    stages = Stages(settings)
    unlink = Path.unlink

    def killed(path: Path, **how: Any) -> None:
        if path.name == "intent.json" and path.parent.name == "bronze":
            raise Killed
        unlink(path, **how)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", killed)
        with pytest.raises(Killed):
            stages.take_all(pieces=2)
    Stages(settings).take_all(pieces=2)
    for name in ("bronze/frames", "silver/frames", "gold/statistics"):
        found = deltalake.DeltaTable(str(out / name))
        assert sorted(found.to_pyarrow_table()["seq"].to_pylist()) == list(range(50)), name
    assert deltalake.DeltaTable(str(out / "bronze/frames")).version() == 2


@pytest.mark.usefixtures("spark")
def test_a_functions_arrays_are_published_as_a_stream(
    root: Path, out: Path, aeron_dir: Path, shm_base: Path, free_stream_id: int
) -> None:
    record(root, range(20), trace=4000)
    words = {"name": "live", "function": "a:b", "output": "stream", "aeron_dir": str(aeron_dir)}
    settings = define(root, out, functions=[{**words, "streams": [10], "target_stream": free_stream_id}])
    with (
        tp.open("embedded", aeron_dir=aeron_dir, shm_base_dir=shm_base) as ctx,
        ctx.consumer(free_stream_id) as consumer,
    ):
        found: dict[int, int] = {}
        is_over = threading.Event()

        def look() -> None:
            while not is_over.is_set():
                for frame in consumer.poll(100):
                    value = int(frame.array[0, 0])
                    if frame.valid():
                        found[frame.trace_id or 0] = value
                time.sleep(0.005)

        # The memory goes with the producer: whoever wants to see it looks meanwhile.
        watcher = threading.Thread(target=look)
        watcher.start()
        try:
            Stages(settings, live=lambda array: array[:2] + 1).take_all()
        finally:
            is_over.set()
            watcher.join()
    # A reader that comes while it is published may miss some; what it sees is what was computed.
    assert found
    assert all(value == trace - 4000 + 1 for trace, value in found.items())


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


@pytest.mark.usefixtures("spark")
def test_a_full_disk_ends_the_run_and_room_lets_it_go_on(small: Path, root: Path) -> None:
    record(root, range(60), shape=(64, 256))
    settings = define(root, small / "tables", payload="inline", target_file="256KiB")
    with pytest.raises(DiskFull, match="make room"):
        Stages(settings).take_all(pieces=3)
    before = keys(table(settings, "silver/frames"))
    assert len(set(before)) == len(before) < 60
    subprocess.run(["mount", "-o", "remount,size=64m", str(small)], check=True)
    Stages(settings).take_all(pieces=3)
    assert keys(table(settings, "silver/frames")) == [(10, 1, seq) for seq in range(60)]


# --- elsewhere


@pytest.mark.long
@pytest.mark.usefixtures("orphans_end")
def test_a_definition_in_python_runs_through_connect(root: Path, out: Path) -> None:
    record(root, range(100))
    definition = out.parent / "pipeline.py"
    definition.write_text(
        "from tensorpool.pipeline import Pipeline\n"
        f"pipeline = Pipeline(recordings=[{str(root)!r}], out={str(out)!r}, max_rows=40)\n"
        "@pipeline.function(columns='mean double')\n"
        "def looks(array):\n    return array.mean()\n"
    )
    done = start(definition, "--remote", "local[2]")
    _, words = done.communicate(timeout=600)
    assert done.returncode == 0, words.decode()[-3000:]
    for name in ("silver/frames", "gold/looks"):
        assert keys(table(define(root, out), name)) == [(10, 1, seq) for seq in range(100)]


# --- kills, on a cluster


def start(definition: Path, *where: str) -> subprocess.Popen[bytes]:
    path = os.pathsep.join([str(ROOT / "python"), str(ROOT)])
    command = [sys.executable, "-m", "tensorpool", "pipeline", "run", str(definition), "--once", *where]
    return subprocess.Popen(
        [*command, "--quiet", "--json"], env={**os.environ, "PYTHONPATH": path}, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.mark.long
@pytest.mark.usefixtures("orphans_end")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("stage", ["bronze", "silver", "align", "gold"])
def test_a_kill_in_a_stage_on_a_cluster_changes_nothing(root: Path, out: Path, stage: str) -> None:
    dice = random.Random(stage)
    record(root, range(300), trace=9000)
    record(root, [seq for seq in range(300) if seq % 7], stream_id=11, shift_ns=1000)
    definition = out.parent / "pipeline.toml"
    definition.write_text(
        f'[pipeline]\nrecordings = ["{root}"]\nout = "{out}"\nmax_rows = 120\n'
        '[pipeline.quality]\ninterval = "500ms"\nlateness = "100ms"\n'
        '[[pipeline.alignments]]\nname = "stereo"\nstreams = [10, 11]\ntolerance = "1ms"\n'
        '[[pipeline.functions]]\nname = "looks"\nfunction = "numpy:mean"\ncolumns = "mean double"\n'
    )
    where = ("--master", "local-cluster[2,1,1024]")
    process = start(definition, *where)
    chosen = dice.randrange(3)
    deadline = time.monotonic() + 300
    while not list((out / "_staging").glob(f"{stage}-{chosen}-*")):
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        assert time.monotonic() < deadline
        time.sleep(0.005)
    time.sleep(dice.random() * 0.5)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    again = start(definition, *where)
    _, words = again.communicate(timeout=900)
    assert again.returncode == 0, words.decode()[-3000:]
    settings = define(root, out)
    wanted = [(10, 1, seq) for seq in range(300)] + [(11, 1, seq) for seq in range(300) if seq % 7]
    for name in ("bronze/frames", "silver/frames", "gold/looks", "gold/statistics"):
        assert keys(table(settings, name)) == wanted, name
    aligned = sorted(row["frames"][0]["seq"] for row in table(settings, "silver/aligned/stereo"))
    assert aligned == [seq for seq in range(300) if seq % 7]
    lonely = Counter(row["reason"] for row in table(settings, "silver/unaligned/stereo"))
    assert lonely == {"missing": 43}
    quality = table(settings, "gold/quality")
    assert (sum(row["frames"] for row in quality), sum(row["dropped"] for row in quality)) == (557, 42)
    assert len({(row["stream_id"], row["interval_start_ns"]) for row in quality}) == len(quality)
    assert status(out).stages["gold"].batch >= 4
