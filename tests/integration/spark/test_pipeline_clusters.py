"""Pipelines through Spark Connect and on clusters, stopped and killed."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tensorpool import recording
from tensorpool.errors import PipelineError
from tensorpool.pipeline import status
from tests.e2e.pages import blocks, looks_like, steps
from tests.integration.spark.conftest import ROOT
from tests.integration.spark.test_clusters import alone, can_unshare, standalone
from tests.integration.storage.tables import check, record_more, write_definition
from tests.s3_server import S3Server
from tests.unit.pipeline.conftest import arrows_threads  # noqa: F401  a fixture
from tests.unit.pipeline.harness import define, keys, record, table

pytestmark = [pytest.mark.timeout(1800), pytest.mark.long, pytest.mark.usefixtures("orphans_end")]


def start(definition: Path, *how: str, prefix: Sequence[str] = ()) -> subprocess.Popen[bytes]:
    path = os.pathsep.join([str(ROOT / "python"), str(ROOT)])
    command = [sys.executable, "-m", "tensorpool", "pipeline", "run", str(definition), *how]
    environment = {**os.environ, "PYTHONPATH": path, "SPARK_LOCAL_IP": "127.0.0.1"}
    return subprocess.Popen(
        [*prefix, *command, "--json"], env=environment, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_python_definition_runs_through_connect(root: Path, out: Path) -> None:
    record(root, range(100))
    definition = out.parent / "pipeline.py"
    definition.write_text(
        "from tensorpool.pipeline import Pipeline\n"
        f"pipeline = Pipeline(recordings=[{str(root)!r}], out={str(out)!r}, max_rows=40)\n"
        "@pipeline.function(columns='mean double')\n"
        "def looks(array):\n    return array.mean()\n"
    )
    done = start(definition, "--once", "--quiet", "--remote", "local[2]")
    _, errors = done.communicate(timeout=600)
    assert done.returncode == 0, errors.decode()[-3000:]
    for name in ("silver/frames", "gold/looks"):
        assert keys(table(define(root, out), name)) == [(10, 1, seq) for seq in range(100)]


def test_pipeline_on_a_standalone_cluster_runs_until_stopped(root: Path, out: Path, tmp_path: Path) -> None:
    record(root, range(100))
    definition = tmp_path / "pipeline.toml"
    definition.write_text(
        f'[pipeline]\nrecordings = ["{root}"]\nout = "{out}"\ntrigger = "500ms"\n'
        '[[pipeline.functions]]\nname = "looks"\nfunction = "looks:mean"\ncolumns = "mean double"\n'
    )
    # Beside the definition, where executors import it from too.
    (tmp_path / "looks.py").write_text("def mean(array):\n    return array.mean()\n")
    with standalone(tmp_path) as master:
        process = start(definition, "--master", master)
        try:
            await_frames(process, out, lambda frames: frames == 100)
            record(root, range(100, 150))
            await_frames(process, out, lambda frames: frames == 150)
            process.send_signal(signal.SIGINT)
            printed, errors = process.communicate(timeout=120)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
    assert process.returncode == 0, errors.decode()[-3000:]
    found = json.loads(printed)
    assert found["stages"]["gold"]["totals"]["functions"] == {"looks": 150}
    assert found["is_running"] is False
    # Progress, as occasional lines without a terminal.
    assert b"bronze batch" in errors
    assert b"behind" in errors
    for name in ("silver/frames", "gold/looks"):
        assert keys(table(define(root, out), name)) == [(10, 1, seq) for seq in range(150)]


def await_frames(process: subprocess.Popen[bytes], out: Path, is_enough: Callable[[int], bool]) -> None:
    """Waits until gold has all frames of silver, and their number is enough."""
    deadline = time.monotonic() + 300
    while True:
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        assert time.monotonic() < deadline
        try:
            stages = status(out).stages
        except PipelineError:
            stages = {}
        is_done = bool(stages) and stages["gold"].batch == stages["silver"].batch >= 0
        if is_done and is_enough(stages["silver"].totals.frames):
            return
        time.sleep(0.1)


def test_workers_without_a_shared_disk_write_to_a_store(tmp_path: Path, s3_server: S3Server) -> None:
    """Recording and tables are in the store; the hosts are mount namespaces that see no common directory."""
    if not can_unshare():
        pytest.skip("this user may not make mount namespaces")
    root, definition = tmp_path / "recording", tmp_path / "definition" / "pipeline.toml"
    definition.parent.mkdir()
    record_more(root, 0, 120)
    archive = s3_server.uri("recording")
    recording.push(root, archive)
    write_definition(definition, Path("unused"), s3_server.uri("tables"), max_rows=60, is_local=False)
    text = definition.read_text()
    definition.write_text(text.replace('["unused"]', f'["{archive}"]'))
    hidden = [root, definition.parent, s3_server.directory]
    with standalone(tmp_path, hidden) as master:
        workers = [tmp_path / "worker-0", tmp_path / "worker-1"]
        process = start(
            definition, "--once", "--master", master, prefix=alone([], [root, s3_server.directory, *workers])
        )
        try:
            _, errors = process.communicate(timeout=900)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
        assert process.returncode == 0, errors.decode()[-3000:]
        # Both of them had executors: each has a directory of its own for them.
        assert all(list(worker.glob("app-*/*/stderr")) for worker in workers)
    shutil.rmtree(root)
    print(check(definition))


PAGE = ROOT / "docs" / "how-to" / "from-one-machine-to-a-cluster.md"


def test_page_from_one_machine_to_a_cluster_is_followed(tmp_path: Path, s3_server: S3Server) -> None:
    here = tmp_path / "here"
    here.mkdir()
    record(here / "recording", range(100))
    for settings in blocks(PAGE, "toml"):
        name = settings.splitlines()[0].removeprefix("# ")
        (here / name).write_text(settings)
    # The workers do not see the directory of the page, nor each other's.
    hidden = [here, s3_server.directory] if can_unshare() else []
    with standalone(tmp_path, hidden) as master:
        environment = {
            **os.environ, "MASTER": master, "NO_COLOR": "1", "SPARK_LOCAL_IP": "127.0.0.1",
            "PYTHONPATH": os.pathsep.join([str(ROOT / "python"), str(ROOT)]),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }  # fmt: skip
        counted = 0
        for block in blocks(PAGE, "console"):
            for command, expected in steps(block):
                done = subprocess.run(
                    command, shell=True, cwd=here, env=environment, capture_output=True, text=True,
                    check=False, timeout=900,
                )  # fmt: skip
                assert done.returncode == 0, (command, done.stderr[-3000:])
                printed = done.stdout + (done.stderr if "push" in command else "")
                assert looks_like(printed, expected), (command, printed)
                if " sql " in command:
                    assert done.stdout.split() == expected.split() == ["frames", "100"]
                    counted += 1
    assert counted == 2


@pytest.mark.parametrize("step", ["files", "decision", "tables", "compact"])
def test_pipeline_recovers_from_a_kill_at_any_step(root: Path, out: Path, step: str) -> None:
    dice = random.Random(step)
    record(root, range(300), trace=9000)
    record(root, [seq for seq in range(300) if seq % 7], stream_id=11, shift_ns=1000)
    definition = out.parent / "pipeline.toml"
    definition.write_text(
        # Many micro-batches, so that files are merged.
        f'[pipeline]\nrecordings = ["{root}"]\nout = "{out}"\ncompact = "always"\n'
        f"max_rows = {12 if step == 'compact' else 60}\n"
        '[pipeline.quality]\ninterval = "500ms"\nlateness = "100ms"\n'
        '[[pipeline.alignments]]\nname = "stereo"\nstreams = [10, 11]\ntolerance = "1ms"\n'
        '[[pipeline.functions]]\nname = "looks"\nfunction = "numpy:mean"\ncolumns = "mean double"\n'
    )
    where = ("--once", "--quiet", "--master", "local-cluster[2,1,1024]")
    process = start(definition, *where)
    chosen = 1 + dice.randrange(3)
    # What appears when the step begins.
    appears = {
        "files": f"silver/frames/date=*/b{chosen:08}-*.parquet",
        "decision": f"_state/{chosen:012}-*.arrow",
        "tables": f"_decisions/{chosen:012}.json",
        "compact": "silver/frames/date=*/part-*.parquet",
    }[step]
    deadline = time.monotonic() + 300
    while not list(out.glob(appears)):
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        assert time.monotonic() < deadline
        time.sleep(0.002)
    time.sleep(dice.random() * 0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    again = start(definition, *where)
    _, errors = again.communicate(timeout=900)
    assert again.returncode == 0, errors.decode()[-3000:]
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
