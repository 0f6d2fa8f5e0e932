"""`tensorpool record` as a child process."""

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
from tensorpool.errors import RequestRejected
from tests.e2e.commandline import TIMEOUT_S, CommandLine, offering, running
from tests.e2e.terminal import ended, in_terminal, interrupt
from tests.integration.service.roles import Heater

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


def record_arguments(camera: tp.Producer, root: Path) -> list[str]:
    return ["record", "--stream", str(camera.stream_id), "--out", str(root), "--buffer", "4MiB"]


def rows(root: Path, stream_id: int) -> int:
    """Frames that can be read from the recording now."""
    try:
        with recording.open(root) as opened:
            return sum(ledger.rows for ledger in opened.ledger(stream_id))
    except tp.TensorPoolError:
        return 0


def test_record_frames_limit_prints_the_ledger(
    shell: CommandLine, camera: tp.Producer, tmp_path: Path
) -> None:
    root = tmp_path / "recording"
    with offering(camera, IMAGE, hz=200):
        result = shell.run(*record_arguments(camera, root), "--frames", "50", "--json")
    assert result.returncode == 0, result.stderr
    printed = json.loads(result.stdout)
    assert printed["rows"] == 50
    assert printed["balanced"]
    (ledger,) = printed["ledger"]
    assert ledger["span"] == ledger["rows"] + sum(ledger["gaps"].values())
    assert rows(root, camera.stream_id) == 50
    assert shell.run("recording", "verify", str(root)).returncode == 0


def test_record_ctrl_c_seals_and_prints_the_ledger(
    shell: CommandLine, camera: tp.Producer, tmp_path: Path, wait_until: Callable[..., Any]
) -> None:
    root = tmp_path / "recording"
    process = shell.start(*record_arguments(camera, root), stderr=subprocess.PIPE)
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
def test_record_progress_line_is_replaced_in_place(
    shell: CommandLine, camera: tp.Producer, tmp_path: Path, columns: int
) -> None:
    arguments = record_arguments(camera, tmp_path / "recording")
    with (
        in_terminal(*arguments, env=shell.environment(), columns=columns) as (terminal, process),
        offering(camera, IMAGE, hz=200),
    ):
        # After two seconds the line was replaced several times.
        shown = terminal.wait_for(lambda text: re.search(r"recording [2-9].*gaps \S", text))
        interrupt(process)
        assert ended(terminal, process) == 0
    # No log text remains in the line.
    (progress,) = [line.rstrip() for line in shown.splitlines() if "backlog" in line]
    assert progress.startswith("recording "), shown
    assert len(progress) < columns
    for part in ("/s", "backlog", "gaps"):
        assert part in progress


@pytest.mark.leaves_files("a recorder is killed")
def test_record_after_kill_recovers_and_continues(
    shell: CommandLine, camera: tp.Producer, tmp_path: Path, wait_until: Callable[..., Any]
) -> None:
    root = tmp_path / "recording"
    with offering(camera, IMAGE):
        process = shell.start(*record_arguments(camera, root))
        with running(process):
            wait_until(lambda: rows(root, camera.stream_id) > 20, timeout=TIMEOUT_S)
        kept = rows(root, camera.stream_id)
        # The ring holds 256 frames: after more, the next recorder cannot read all that the killed one missed.
        overwritten = camera.next_seq + 300
        wait_until(lambda: camera.next_seq > overwritten, timeout=TIMEOUT_S)
        result = shell.run(*record_arguments(camera, root), "--frames", "20", "--json")
    assert result.returncode == 0, result.stderr
    assert "left open" in result.stderr
    (ledger,) = json.loads(result.stdout)["ledger"]
    assert ledger["gaps"]["not_recording"] > 0
    assert rows(root, camera.stream_id) == kept + 20
    with recording.open(root) as opened:
        assert all(ledger.balanced for ledger in opened.ledger(camera.stream_id))


def test_record_all_streams_for_some_seconds(shell: CommandLine, camera: tp.Producer, tmp_path: Path) -> None:
    root = tmp_path / "recording"
    with offering(camera, IMAGE):
        result = shell.run(
            "record", "--all", "--out", str(root), "--seconds", "4", "--buffer", "4MiB", "--json"
        )
    assert result.returncode == 0, result.stderr
    assert [ledger["stream_id"] for ledger in json.loads(result.stdout)["ledger"]] == [camera.stream_id]


def test_record_without_stream_or_directory_is_misuse(shell: CommandLine, tmp_path: Path) -> None:
    without_stream = shell.run("record", "--out", str(tmp_path / "a"))
    without_directory = shell.run("record", "--stream", "10000")
    assert (without_stream.returncode, without_directory.returncode) == (2, 2)
    assert "--all" in without_stream.stderr
    assert "--out" in without_directory.stderr


def test_record_leaves_a_foreign_directory_untouched(
    shell: CommandLine, camera: tp.Producer, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    result = shell.run(*record_arguments(camera, tmp_path / "mine"), "--frames", "1")
    assert result.returncode == 1
    assert "thesis.txt" in result.stderr
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_record_services_keeps_the_accepted_commands(
    shell: CommandLine, aeron_dir: Path, shm_base: Path, tmp_path: Path, wait_until: Callable[..., Any]
) -> None:
    root, ready = tmp_path / "commands", tmp_path / "ready"
    with (
        tp.open(mode="embedded", aeron_dir=aeron_dir, shm_base_dir=shm_base) as ctx,
        ctx.serve(Heater()),
        running(
            shell.start("record", "--services", "--out", str(root), "--ready-file", str(ready))
        ) as process,
        ctx.service("heater", timeout=TIMEOUT_S) as client,
    ):
        wait_until(ready.exists, timeout=TIMEOUT_S)
        assert client.get("temperature") == 20.0
        client.set("temperature", 70.5)
        assert client.call("run") == 1
        with pytest.raises(RequestRejected):
            client.set("temperature", 9000.0)
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0
    result = shell.run("recording", "events", str(root), "--json")
    assert result.returncode == 0, result.stderr
    lines = map(json.loads, result.stdout.splitlines())
    events = [event for event in lines if event["tag"] == "service:heater"]
    kinds = [(event["kind"], event["key"]) for event in events]
    # `runs` changed by the command. A command that was not accepted is no change.
    assert [key for kind, key in kinds if kind == "change"] == ["temperature", "run()", "runs"]
    assert ("read", "temperature.read") in kinds
    assert next(event["value"] for event in events if event["key"] == "temperature") == 70.5
    table = shell.run("recording", "events", str(root)).stdout
    for word in ("change", "read", "heater", "temperature"):
        assert word in table
