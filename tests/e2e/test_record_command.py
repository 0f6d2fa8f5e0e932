"""`tensorpool record` as people run it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tensorpool import recording
from tests.e2e.commandline import TIMEOUT_S, CommandLine, offering, running
from tests.e2e.terminal import ended, in_terminal, interrupt

IMAGE = np.arange(1000, dtype=np.uint16)


@pytest.fixture
def shell(aeron_dir: Path, shm_base: Path) -> CommandLine:
    return CommandLine(aeron_dir, shm_base)


@pytest.fixture
def camera(aeron_dir: Path, shm_base: Path, free_stream_id: int) -> Iterator[tp.Producer]:
    with (
        tp.open(mode="embedded", aeron_dir=aeron_dir, shm_base_dir=shm_base) as ctx,
        ctx.producer(free_stream_id, pools=["64KiB"], nslots=256) as producer,
    ):
        yield producer


def small(camera: tp.Producer, root: Path) -> list[str]:
    return ["record", "--stream", str(camera.stream_id), "--out", str(root), "--buffer", "4MiB"]


def rows(root: Path, stream_id: int) -> int:
    """How many frames can be read by now."""
    try:
        with recording.open(root) as found:
            return sum(one.rows for one in found.ledger(stream_id))
    except tp.TensorPoolError:
        return 0


def test_so_many_frames_and_their_ledger(shell: CommandLine, camera: tp.Producer, tmp_path: Path) -> None:
    root = tmp_path / "recording"
    with offering(camera, IMAGE, hz=200):
        done = shell.run(*small(camera, root), "--frames", "50", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["rows"] == 50
    assert found["balanced"]
    (ledger,) = found["ledger"]
    assert ledger["span"] == ledger["rows"] + sum(ledger["gaps"].values())
    assert rows(root, camera.stream_id) == 50
    assert shell.run("recording", "verify", str(root)).returncode == 0


def test_ctrl_c_seals_and_prints_the_ledger(
    shell: CommandLine, camera: tp.Producer, tmp_path: Path, wait_until: Callable[..., Any]
) -> None:
    root = tmp_path / "recording"
    process = shell.start(*small(camera, root), stderr=subprocess.PIPE)
    with running(process), offering(camera, IMAGE):
        wait_until(lambda: rows(root, camera.stream_id) > 20, timeout=TIMEOUT_S)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, err
    assert f"stream {camera.stream_id}" in out
    assert "span " in out
    assert "frames/s" in err
    assert not list(root.glob("**/*.partial"))


@pytest.mark.parametrize("columns", [80, 130])
def test_the_progress_line_is_one_line_and_is_written_over(
    shell: CommandLine, camera: tp.Producer, tmp_path: Path, columns: int
) -> None:
    arguments = small(camera, tmp_path / "recording")
    with (
        in_terminal(*arguments, env=shell.environment(), columns=columns) as (terminal, process),
        offering(camera, IMAGE, hz=200),
    ):
        # By then it was drawn several times.
        shown = terminal.wait_for(lambda text: re.search(r"recording [2-9].*gaps \S", text))
        interrupt(process)
        assert ended(terminal, process) == 0
    # Of what was logged before, if anything, nothing stands in it.
    (progress,) = [one.rstrip() for one in shown.splitlines() if "backlog" in one]
    assert progress.startswith("recording "), shown
    assert len(progress) < columns
    for word in ("/s", "backlog", "gaps"):
        assert word in progress


@pytest.mark.leaves_files("a recorder is killed")
def test_after_kill_9_it_says_what_it_found_and_goes_on(
    shell: CommandLine, camera: tp.Producer, tmp_path: Path, wait_until: Callable[..., Any]
) -> None:
    root = tmp_path / "recording"
    with offering(camera, IMAGE):
        process = shell.start(*small(camera, root))
        with running(process):
            wait_until(lambda: rows(root, camera.stream_id) > 20, timeout=TIMEOUT_S)
        kept = rows(root, camera.stream_id)
        # A quick successor may find all that the dead one has not read: not after more than the ring holds.
        gone = camera.next_seq + 300
        wait_until(lambda: camera.next_seq > gone, timeout=TIMEOUT_S)
        done = shell.run(*small(camera, root), "--frames", "20", "--json")
    assert done.returncode == 0, done.stderr
    assert "left open" in done.stderr
    (ledger,) = json.loads(done.stdout)["ledger"]
    assert ledger["gaps"]["not_recording"] > 0
    assert rows(root, camera.stream_id) == kept + 20
    with recording.open(root) as found:
        assert all(one.balanced for one in found.ledger(camera.stream_id))


def test_all_streams_for_a_while(shell: CommandLine, camera: tp.Producer, tmp_path: Path) -> None:
    root = tmp_path / "recording"
    with offering(camera, IMAGE):
        done = shell.run(
            "record", "--all", "--out", str(root), "--seconds", "4", "--buffer", "4MiB", "--json"
        )
    assert done.returncode == 0, done.stderr
    assert [one["stream_id"] for one in json.loads(done.stdout)["ledger"]] == [camera.stream_id]


def test_what_is_missing_is_misuse(shell: CommandLine, tmp_path: Path) -> None:
    without_stream = shell.run("record", "--out", str(tmp_path / "a"))
    without_place = shell.run("record", "--stream", "10000")
    assert (without_stream.returncode, without_place.returncode) == (2, 2)
    assert "--all" in without_stream.stderr
    assert "--out" in without_place.stderr


def test_a_directory_of_something_else_is_left_alone(
    shell: CommandLine, camera: tp.Producer, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    done = shell.run(*small(camera, tmp_path / "mine"), "--frames", "1")
    assert done.returncode == 1
    assert "thesis.txt" in done.stderr
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]
