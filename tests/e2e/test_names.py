"""Commands that take the name of a stream where they take its id."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import tensorpool as tp
from tests.e2e.commandline import CommandLine, offering

NAME = "camera-1"


@pytest.fixture(autouse=True)
def _short_announce_period(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the commands, which listen for one and a half announce periods."""
    monkeypatch.setenv("TENSORPOOL_AERON__ANNOUNCE_PERIOD", "500ms")


@pytest.fixture
def commands(aeron_dir: Path, shm_base: Path) -> CommandLine:
    return CommandLine(aeron_dir, shm_base)


@pytest.fixture
def stream_id(
    commands: CommandLine, free_stream_ids: Callable[[], int], aeron_dir: Path, shm_base: Path
) -> Iterator[int]:
    """A named stream with frames, in a system with a driver."""
    stream_id = free_stream_ids()
    with (
        tp.open(aeron_dir=str(aeron_dir), shm_base_dir=str(shm_base)) as context,
        context.producer(stream_id, name=NAME, pools=["64KiB"]) as producer,
        offering(producer, np.arange(48)),
    ):
        yield stream_id


def test_stream_commands_take_the_name(commands: CommandLine, stream_id: int) -> None:
    assert commands.json("stream", "info", NAME)["stream_id"] == stream_id
    assert commands.run("stream", "echo", NAME, "--count", "1").returncode == 0
    assert commands.run("stream", "hz", NAME, "--count", "1", "--period", "0.2").returncode == 0
    missing = commands.run("stream", "info", "camera-2", "--timeout", "1")
    assert missing.returncode == 1
    assert f"announced are {stream_id} ({NAME})" in missing.stderr


def test_ledger_and_top_take_and_show_the_name(commands: CommandLine, stream_id: int) -> None:
    rows = commands.json("ledger", "--stream", NAME, "--settle", "2")
    assert {(row["stream_id"], row["name"]) for row in rows} == {(stream_id, NAME)}
    shown = commands.run("top", "--stream", NAME, "--once")
    assert (shown.returncode, NAME in shown.stdout) == (0, True), shown.stderr


def test_recording_commands_take_the_name(commands: CommandLine, stream_id: int, tmp_path: Path) -> None:
    root = str(tmp_path / "recording")
    recorded = commands.run("record", "--stream", NAME, "--out", root, "--frames", "20", "--quiet")
    assert recorded.returncode == 0, recorded.stderr
    (stream,) = commands.json("recording", "info", root)["streams"]
    assert (stream["stream_id"], stream["name"]) == (stream_id, NAME)
    exported = commands.run("recording", "export", root, str(tmp_path / "f.npy"), "--stream", NAME)
    assert exported.returncode == 0, exported.stderr
    assert len(np.load(tmp_path / "f.npy")) >= 20
    played = commands.run(
        "replay", root, "--stream", NAME, "--map", f"{NAME}={stream_id + 1}", "--speed", "max"
    )
    assert played.returncode == 0, played.stderr
    assert f"stream {stream_id} as {stream_id + 1}" in played.stderr
