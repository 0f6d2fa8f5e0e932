"""`tensorpool replay`, as it is typed."""

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
from tests.integration.replayer.conftest import MS, START_NS, Listener, record


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
def listener(ctx: tp.Context, free_stream_id: int) -> Iterator[Listener]:
    with ctx.consumer(free_stream_id) as consumer:
        yield Listener(consumer)


FOR_LISTENERS = ("--wait", "60", "--nslots", "64", "--linger", "30")


def test_what_is_played_arrives_and_is_accounted_for(
    line: CommandLine, root: Path, listener: Listener, free_stream_id: int
) -> None:
    with running(
        line.start("replay", str(root), "--speed", "max", "--json", *FOR_LISTENERS[:-1], "5")
    ) as process:
        got = listener.until(30)
        out, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
    assert [frame.timestamp_ns for frame in got] == [1_000 + 10 * seq for seq in range(30)]
    last = json.loads(out.splitlines()[-1])
    assert (last["state"], last["frames"], last["missing"]) == ("ended", 30, 0)
    (stream,) = last["streams"]
    assert stream["outcomes"] == {"published": 30}
    assert (stream["recorded"], stream["last"]) == (free_stream_id, {"epoch": "5", "seq": "29"})


def test_words_are_for_people_and_go_to_stderr(line: CommandLine, root: Path, free_stream_id: int) -> None:
    target = free_stream_id + 500
    done = line.run(
        "replay", str(root), "--map", f"{free_stream_id}={target}", "--from", "+10ms", "--to", "+19ms",
        "--speed", "100",
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "played 10 frames" in done.stderr
    assert f"stream {free_stream_id} as {target}: not_connected 10" in done.stderr


def test_steps_are_taken_one_for_each_line(line: CommandLine, root: Path) -> None:
    with running(line.start("replay", str(root), "--step", "--json", stdin=subprocess.PIPE)) as process:
        out, _ = process.communicate("\n\n\n", timeout=TIMEOUT_S)
    assert process.returncode == 0
    *frames, last = map(json.loads, out.splitlines())
    assert [frame["seq"] for frame in frames] == ["0", "1", "2"]
    assert frames[2]["receive_time_ns"] == str(START_NS + 2 * MS)
    assert (last["frames"], last["state"]) == (3, "paused")


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_a_loop_ends_in_good_order(
    line: CommandLine, root: Path, listener: Listener, end: signal.Signals
) -> None:
    with running(
        line.start("replay", str(root), "--loop", *FOR_LISTENERS, stderr=subprocess.PIPE)
    ) as process:
        listener.until(60)
        process.send_signal(end)
        _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, err
    assert "played" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--speed", "fast"], "is no speed"),
        (["--map", "10000"], "RECORDED=PLAYED"),
        (["--from", "noon"], "is no time"),
        (["--max-pause", "long"], "as in '250ms'"),
        (["--clock", "sun"], "receive"),
    ],
)
def test_misuse_is_told_apart_and_says_what_would_do(root: Path, arguments: list[str], words: str) -> None:
    done = CliRunner().invoke(cli, ["replay", str(root), *arguments])
    assert done.exit_code == 2
    assert words in done.stderr


def test_what_cannot_be_played_is_an_error_in_words(
    line: CommandLine, root: Path, tmp_path: Path, ctx: tp.Context, free_stream_id: int
) -> None:
    done = line.run("replay", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    with ctx.producer(free_stream_id):
        done = line.run("replay", str(root))
    assert done.returncode == 1
    assert "tensorpool driver leases" in done.stderr
    done = line.run("replay", "--help")
    assert "Examples" in done.stdout
