"""Real kills of the process that writes tables, and of the S3 server, at random moments from a printed seed.

After each schedule every frame of the recording is in every table once, byte for byte. Spark is not needed
for this: `tests/integration/spark/test_pipeline_kills.py` kills its parts.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.storage.recordings import relay
from tests.integration.storage.tables import OVERTAKEN, check, record_more, start, write_definition
from tests.s3_server import S3Server

pytestmark = pytest.mark.timeout(1800)

SHORT, LONG = 6, 60
FRAMES = 30
MAX_ROWS = 12
"""Five micro-batches for the frames of a round."""
MAX_DELAY_S = 1.5
KILLS = [pytest.param(SHORT, id="short"), pytest.param(LONG, id="long", marks=pytest.mark.long)]


def seed_of(kills: int) -> int:
    """The seed of a schedule: always the same in a short one, TENSORPOOL_SEED or a new one in a long one."""
    seed = 23 if kills == SHORT else int(os.environ.get("TENSORPOOL_SEED", time.time_ns() % 1_000_000))
    print(f"seed {seed}: TENSORPOOL_SEED={seed} repeats the schedule")
    return seed


@contextmanager
def writers(definition: Path, count: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that take the frames into the tables at the same time. None of them outlives the block."""
    running = [start("write", definition) for _ in range(count)]
    try:
        yield running
    finally:
        for process in running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def finish(definition: Path) -> None:
    """A run to the end, without a kill."""
    with writers(definition, 1) as (process,):
        _, errors = process.communicate(timeout=600)
        assert process.returncode == 0, errors[-8000:]


def kill_writers(definition: Path, root: Path, kills: int, dice: random.Random) -> Counter[str]:
    """Records, starts one or two processes, and kills them, until there were that many kills."""
    counts: Counter[str] = Counter()
    seq = 0
    while counts["kills"] < kills:
        counts["rounds"] += 1
        assert counts["rounds"] <= 4 * kills, f"hardly any process was alive when it was killed: {counts}"
        seq = record_more(root, seq, FRAMES)
        with writers(definition, 1 + (dice.random() < 0.3)) as running:
            for process in running:
                # Some are killed while they start and recover; most of them within a micro-batch.
                if dice.random() < 0.8:
                    assert process.stdout is not None
                    process.stdout.readline()
            # Two of them get the time to decide the same micro-batch.
            time.sleep(dice.uniform(0, MAX_DELAY_S * (2 * len(running) - 1)))
            for process in running:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    counts["kills"] += 1
                _, errors = process.communicate()
                assert process.returncode in (0, -signal.SIGKILL, OVERTAKEN), errors[-8000:]
                counts["overtaken"] += process.returncode == OVERTAKEN
    return counts


@pytest.mark.parametrize("kills", KILLS)
def test_killed_writers_lose_and_repeat_nothing_on_a_disk(tmp_path: Path, kills: int) -> None:
    dice = random.Random(seed_of(kills))
    root, definition = tmp_path / "recording", tmp_path / "pipeline.toml"
    write_definition(definition, root, str(tmp_path / "tables"), max_rows=MAX_ROWS, is_local=True)
    counts = kill_writers(definition, root, kills, dice)
    finish(definition)
    print(f"{dict(counts)}: {check(definition)}")


@pytest.mark.parametrize("kills", KILLS)
def test_killed_writers_lose_and_repeat_nothing_on_s3(
    s3_server: S3Server, tmp_path: Path, kills: int
) -> None:
    dice = random.Random(seed_of(kills))
    root, definition = tmp_path / "recording", tmp_path / "pipeline.toml"
    write_definition(definition, root, s3_server.uri("tables"), max_rows=MAX_ROWS, is_local=False)
    counts = kill_writers(definition, root, kills, dice)
    finish(definition)
    print(f"{dict(counts)}: {check(definition)}")


@pytest.mark.parametrize("kills", KILLS)
def test_killed_s3_server_costs_time_and_nothing_else(
    s3_server: S3Server, tmp_path: Path, kills: int
) -> None:
    dice = random.Random(seed_of(kills))
    root, definition = tmp_path / "recording", tmp_path / "pipeline.toml"
    write_definition(definition, root, s3_server.uri("tables"), max_rows=MAX_ROWS, is_local=False)
    seq = 0
    counts: Counter[str] = Counter()
    while counts["kills"] < kills:
        seq = record_more(root, seq, 2 * FRAMES)
        counts["rounds"] += 1
        assert counts["rounds"] <= 4 * kills, f"hardly any process ran when its server was killed: {counts}"
        with writers(definition, 1) as (process,):
            assert process.stdout is not None
            process.stdout.readline()
            while process.poll() is None and counts["kills"] < kills:
                time.sleep(dice.uniform(0, MAX_DELAY_S / 2))
                if process.poll() is not None:
                    break
                s3_server.stop()
                counts["kills"] += 1
                time.sleep(dice.uniform(0, 2))
                s3_server.start()
            _, errors = process.communicate(timeout=600)
            # It waits for the server, or it says which request failed and is run again.
            counts["failed"] += process.returncode != 0
            assert process.returncode in (0, 1), errors[-8000:]
    finish(definition)
    print(f"{dict(counts)}: {check(definition)}")


@pytest.mark.parametrize("cuts", KILLS)
def test_cut_network_costs_time_and_nothing_else(
    s3_server: S3Server, tmp_path: Path, cuts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(seed_of(cuts))
    root, definition = tmp_path / "recording", tmp_path / "pipeline.toml"
    write_definition(definition, root, s3_server.uri("tables"), max_rows=MAX_ROWS, is_local=False)
    seq = 0
    counts: Counter[str] = Counter()
    with relay(s3_server.port) as network, monkeypatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{network.port}")
        while counts["cuts"] < cuts:
            seq = record_more(root, seq, 2 * FRAMES)
            counts["rounds"] += 1
            assert counts["rounds"] <= 4 * cuts, f"hardly any process ran when it was cut off: {counts}"
            with writers(definition, 1) as (process,):
                assert process.stdout is not None
                process.stdout.readline()
                while process.poll() is None and counts["cuts"] < cuts:
                    time.sleep(dice.uniform(0, MAX_DELAY_S / 2))
                    if process.poll() is not None:
                        break
                    network.cut()
                    counts["cuts"] += 1
                    # Some connections only break; others cannot be made again for a while.
                    time.sleep(dice.choice((0.0, dice.uniform(0, 2))))
                    network.mend()
                _, errors = process.communicate(timeout=600)
                counts["failed"] += process.returncode != 0
                assert process.returncode in (0, 1), errors[-8000:]
    finish(definition)
    print(f"{dict(counts)}: {check(definition)}")


@pytest.mark.parametrize(
    ("store", "kills"),
    [
        pytest.param("disk", 0, id="short"),
        pytest.param("disk", LONG // 2, id="disk", marks=pytest.mark.long),
        pytest.param("s3", LONG // 2, id="s3", marks=pytest.mark.long),
    ],
)
def test_two_pipelines_write_one_root_at_the_same_time(
    tmp_path: Path, store: str, kills: int, request: pytest.FixtureRequest
) -> None:
    dice, is_local = random.Random(seed_of(kills or SHORT)), store == "disk"
    out = str(tmp_path / "tables") if is_local else request.getfixturevalue("s3_server").uri("tables")
    definitions, roots = {}, {}
    for name, left in (("east", 10), ("west", 20)):
        definitions[left], roots[left] = tmp_path / f"{name}.toml", tmp_path / name
        write_definition(
            definitions[left], roots[left], out, max_rows=MAX_ROWS, is_local=is_local, name=name, left=left
        )
    counts: Counter[str] = Counter()
    # The first round is without kills: both begin the same new root.
    for round_number in range(1 + kills // 2):
        for left, root in roots.items():
            record_more(root, round_number * FRAMES, FRAMES, left)
        with writers(definitions[10], 1) as east, writers(definitions[20], 1) as west:
            for process in (*east, *west):
                if round_number:
                    assert process.stdout is not None
                    process.stdout.readline()
                    time.sleep(dice.uniform(0, MAX_DELAY_S))
                    if process.poll() is None:
                        os.killpg(process.pid, signal.SIGKILL)
                        counts["kills"] += 1
                _, errors = process.communicate(timeout=600)
                # Neither overtakes the other: each decides micro-batches of its own.
                assert process.returncode in (0, -signal.SIGKILL), errors[-8000:]
    if kills:
        with writers(definitions[10], 1) as east, writers(definitions[20], 1) as west:
            for process in (*east, *west):
                _, errors = process.communicate(timeout=600)
                assert process.returncode == 0, errors[-8000:]
    print(f"{dict(counts)}: {check(*definitions.values())}")
