"""`tensorpool replay` as a child process."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import tensorpool as tp
from tensorpool.cli import cli
from tests.e2e.commandline import TIMEOUT_S, CommandLine, running
from tests.integration.replayer.conftest import MS, START_NS, FrameCollector, record


@pytest.fixture
def root(tmp_path: Path, free_stream_id: int) -> Path:
    record(tmp_path / "recording", free_stream_id, frames=30)
    return tmp_path / "recording"


@pytest.fixture
def line(aeron_dir: Path, shm_base: Path) -> CommandLine:
    return CommandLine(aeron_dir, shm_base)


@pytest.fixture
def ctx(aeron_dir: Path, shm_base: Path) -> Iterator[tp.Context]:
    with tp.open(aeron_dir=aeron_dir, shm_base_dir=shm_base) as context:
        yield context


@pytest.fixture
def collector(ctx: tp.Context, free_stream_id: int) -> Iterator[FrameCollector]:
    with ctx.consumer(free_stream_id) as consumer:
        yield FrameCollector(consumer)


FOR_CONSUMERS = ("--wait", "60", "--nslots", "64", "--linger", "30")


def test_replay_publishes_and_counts_every_frame(
    line: CommandLine, root: Path, collector: FrameCollector, free_stream_id: int
) -> None:
    with running(
        line.start("replay", str(root), "--speed", "max", "--json", *FOR_CONSUMERS[:-1], "5")
    ) as process:
        received = collector.until(30)
        out, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
    assert [frame.timestamp_ns for frame in received] == [1_000 + 10 * seq for seq in range(30)]
    last = json.loads(out.splitlines()[-1])
    assert (last["state"], last["frames"], last["missing"]) == ("ended", 30, 0)
    (stream,) = last["streams"]
    assert stream["outcomes"] == {"published": 30}
    assert (stream["recorded"], stream["last"]) == (free_stream_id, {"epoch": "5", "seq": "29"})


def test_replay_prints_its_summary_on_stderr(line: CommandLine, root: Path, free_stream_id: int) -> None:
    target = free_stream_id + 500
    result = line.run(
        "replay", str(root), "--map", f"{free_stream_id}={target}", "--from", "+10ms", "--to", "+19ms",
        "--speed", "100",
    )  # fmt: skip
    assert (result.returncode, result.stdout) == (0, ""), result.stderr
    assert "played 10 frames" in result.stderr
    assert f"stream {free_stream_id} as {target}: not_connected 10" in result.stderr


def test_replay_step_publishes_a_frame_per_line(line: CommandLine, root: Path) -> None:
    with running(line.start("replay", str(root), "--step", "--json", stdin=subprocess.PIPE)) as process:
        out, _ = process.communicate("\n\n\n", timeout=TIMEOUT_S)
    assert process.returncode == 0
    *frames, last = map(json.loads, out.splitlines())
    assert [frame["seq"] for frame in frames] == ["0", "1", "2"]
    assert frames[2]["receive_time_ns"] == str(START_NS + 2 * MS)
    assert (last["frames"], last["state"]) == (3, "paused")


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_replay_loop_ends_cleanly_on_a_signal(
    line: CommandLine, root: Path, collector: FrameCollector, end: signal.Signals
) -> None:
    with running(
        line.start("replay", str(root), "--loop", *FOR_CONSUMERS, stderr=subprocess.PIPE)
    ) as process:
        collector.until(60)
        process.send_signal(end)
        _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, err
    assert "played" in err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--speed", "fast"], "is not a speed"),
        (["--map", "10000"], "RECORDED=PLAYED"),
        (["--from", "noon"], "is not a time"),
        (["--max-pause", "long"], "as in '250ms'"),
        (["--time-base", "sun"], "receive"),
    ],
)
def test_replay_misuse_explains_valid_values(root: Path, arguments: list[str], reason: str) -> None:
    result = CliRunner().invoke(cli, ["replay", str(root), *arguments])
    assert result.exit_code == 2
    assert reason in result.stderr


def test_replay_of_an_unplayable_recording_is_an_error(
    line: CommandLine, root: Path, tmp_path: Path, ctx: tp.Context, free_stream_id: int
) -> None:
    result = line.run("replay", str(tmp_path))
    assert result.returncode == 1
    assert result.stderr.startswith("error: ")
    with ctx.producer(free_stream_id):
        result = line.run("replay", str(root))
    assert result.returncode == 1
    assert "tensorpool driver leases" in result.stderr
    result = line.run("replay", "--help")
    assert "Examples" in result.stdout
