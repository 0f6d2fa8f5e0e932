"""The commands of `tensorpool stream`, on streams of a running system."""

from __future__ import annotations

import json
import os
import re
import signal
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

import tensorpool as tp
from tests.e2e.commandline import TIMEOUT_S, CommandLine, offering, running
from tests.remote_process import Background

IMAGE = np.arange(48 * 64, dtype=np.uint16).reshape(48, 64)
SIGNATURE = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class LiveSystem:
    """A system with two streams: images, and an announced stream without frames."""

    command: CommandLine
    images: int
    idle: int


@pytest.fixture(autouse=True)
def _short_announce_period(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the commands, which listen for one and a half announce periods."""
    monkeypatch.setenv("TENSORPOOL_AERON__ANNOUNCE_PERIOD", "500ms")


@pytest.fixture
def command_line(aeron_dir: Path, shm_base: Path) -> CommandLine:
    return CommandLine(aeron_dir, shm_base)


@pytest.fixture(params=["standalone", "embedded"])
def any_live(
    request: pytest.FixtureRequest, command_line: CommandLine, free_stream_ids: Callable[[], int]
) -> Iterator[LiveSystem]:
    """A system with or without a driver: the commands work with both."""
    with system(request.param, command_line, free_stream_ids) as live:
        yield live


@pytest.fixture
def live(command_line: CommandLine, free_stream_ids: Callable[[], int]) -> Iterator[LiveSystem]:
    """A system without a driver."""
    with system("standalone", command_line, free_stream_ids) as live:
        yield live


@contextmanager
def system(
    mode: Literal["standalone", "embedded"], command_line: CommandLine, free_stream_ids: Callable[[], int]
) -> Iterator[LiveSystem]:
    """Runs a system in a mode."""
    images, idle = free_stream_ids(), free_stream_ids()
    with (
        tp.MediaDriver(command_line.aeron_dir),
        tp.open(
            mode,
            aeron_dir=command_line.aeron_dir,
            media_driver="external",
            shm_base_dir=command_line.shm_base,
        ) as ctx,
        ctx.producer(images, pools=["64KiB"], nslots=8) as producer,
        ctx.producer(idle, pools=["4KiB"], nslots=2),
        offering(producer, IMAGE),
    ):
        yield LiveSystem(command_line, images, idle)


def test_ls_and_info_describe_every_stream(any_live: LiveSystem) -> None:
    rows = {row["stream_id"]: row for row in any_live.command.json("stream", "ls")}
    assert sorted(rows) == [any_live.images, any_live.idle]
    row = rows[any_live.images]
    assert (row["nslots"], [pool["stride_bytes"] for pool in row["pools"]]) == (8, [65536])
    assert row["producer_id"] is not None
    assert isinstance(row["epoch"], str)
    shown = any_live.command.run("stream", "ls").stdout
    assert re.search(rf"{any_live.images} .*64KiB", shown)
    info = any_live.command.json("stream", "info", str(any_live.images))
    assert info["epoch"] == row["epoch"]
    assert Path(info["directory"]).is_relative_to(any_live.command.shm_base)
    output = any_live.command.run("stream", "info", str(any_live.images)).stdout
    assert info["epoch"] in output
    if info["leases"] is None:
        assert "no lease is needed" in output
    else:
        assert [lease["role"] for lease in info["leases"]] == ["producer"]
        assert row["driver"]["consumers"] == 0
        assert "producer" in output


def test_hz_measures_the_rate(live: LiveSystem) -> None:
    # On a busy machine the producer may be late, but is never early; queued frames arrive at once.
    for clock, max_hz in (("arrival", 400), ("frame", 110)):
        done = live.command.run(
            "stream", "hz", str(live.images), "--count", "1", "--period", "2", "--clock", clock, "--json"
        )
        report = json.loads(done.stdout)
        rate = report["rate"]
        assert report["new"] > 1
        assert 1 < rate["hz"] < max_hz
        assert rate["min_s"] <= 1 / rate["hz"] <= rate["max_s"]
    output = live.command.run("stream", "hz", str(live.images), "--count", "1", "--period", "0.5").stdout
    assert re.match(r"[\d.]+ Hz  min .* max .* std dev .* window \d+", output)


def test_hz_reports_the_latency_of_frames(live: LiveSystem) -> None:
    report = json.loads(
        live.command.run("stream", "hz", str(live.images), "--count", "2", "--json").stdout.splitlines()[-1]
    )
    latency = report["latency"]
    assert (latency["since"], latency["excluded"]) == ("capture", 0)
    assert 0 < latency["total"]["p50_ns"] <= latency["total"]["p99_ns"] <= latency["total"]["max_ns"]
    output = live.command.run("stream", "hz", str(live.images), "--count", "1").stdout
    assert re.search(r"  latency p50 [\d.]+ .?s p99 [\d.]+ .?s", output), output


def test_info_lists_the_metadata_of_the_source(
    command_line: CommandLine, free_stream_ids: Callable[[], int]
) -> None:
    described, plain = free_stream_ids(), free_stream_ids()
    attributes = {
        "serial": "A1",
        "gain": 2.5,
        "roi": [0, 0, 64, 48],
        "dark": np.zeros((4, 6), np.uint8),
        "raw": b"\x00\x01",
        "rude": "\x1b[31mred",
    }
    with (
        tp.MediaDriver(command_line.aeron_dir),
        tp.open("standalone", aeron_dir=command_line.aeron_dir, shm_base_dir=command_line.shm_base) as ctx,
        ctx.producer(described, pools=["64KiB"], name="camera", tags=["lab"], metadata=attributes),
        ctx.producer(plain, pools=["4KiB"]),
    ):
        report = command_line.json("stream", "info", str(described))["metadata"]
        output = command_line.run("stream", "info", str(described)).stdout
        plain_report = command_line.json("stream", "info", str(plain))
        plain_output = command_line.run("stream", "info", str(plain)).stdout
    assert report["version"] == 1
    listed = report["attributes"]
    assert (listed["serial"], listed["gain"], listed["roi"]) == ("A1", 2.5, [0, 0, 64, 48])
    assert (listed["dark"]["shape"], listed["dark"]["dtype"]) == ([4, 6], "uint8")
    assert listed["raw"] == {"format": "application/octet-stream", "bytes": 2, "base64": "AAE="}
    assert re.search(r"^metadata +version 1, \d+ attributes *$", output, re.M)
    assert re.search(r"^  serial +A1 *$", output, re.M)
    assert re.search(r"^  dark +array 4x6 uint8 *$", output, re.M)
    assert re.search(r"^  raw +2 bytes of application/octet-stream *$", output, re.M)
    assert "\x1b" not in output
    assert plain_report["metadata"] is None
    assert re.search(r"^metadata +none *$", plain_output, re.M)


def test_watch_reports_the_latency_of_the_slowest_consumer(any_live: LiveSystem) -> None:
    with (
        tp.open(
            "standalone",
            aeron_dir=any_live.command.aeron_dir,
            media_driver="external",
            shm_base_dir=any_live.command.shm_base,
        ) as ctx,
        ctx.consumer(any_live.images) as consumer,
        running(any_live.command.start("stream", "watch", "--json", "--period", "0.3")) as watcher,
    ):
        assert watcher.stdout is not None
        latency = None
        while latency is None:
            for _ in range(10):
                consumer.receive_or_none(1.0)
            line = json.loads(watcher.stdout.readline())
            latency = line["latency"] if line["stream_id"] == any_live.images else None
        watcher.send_signal(signal.SIGINT)
        watcher.communicate(timeout=60)
    # The watch command reads too, but publishes no status report.
    assert latency["consumers"] == 1
    assert 0 < latency["p50_ns"] <= latency["p99_ns"] <= latency["max_ns"]


def test_service_watch_prints_the_status_report_of_a_consumer(live: LiveSystem) -> None:
    command = live.command
    with (
        tp.open(
            "standalone", aeron_dir=command.aeron_dir, media_driver="external", shm_base_dir=command.shm_base
        ) as ctx,
        ctx.consumer(live.images) as consumer,
        running(command.start("service", "watch", f"consumer:{live.images}", "status", "--json")) as watcher,
    ):
        assert watcher.stdout is not None
        reading = Background(lambda stop: read_until(stop, consumer))
        frames = 0
        while not frames:
            line = json.loads(watcher.stdout.readline())
            frames = int(line["value"]["interval_frames"])
        reading.stop()
        watcher.send_signal(signal.SIGINT)
        watcher.communicate(timeout=60)
    assert (line["tag"], line["key"]) == (f"service:consumer:{live.images}", "status")
    assert watcher.returncode == 0


def read_until(stop: threading.Event, consumer: tp.Consumer) -> None:
    """Receives frames until `stop`."""
    while not stop.is_set():
        consumer.receive_or_none(0.1)


def test_echo_summarizes_frames(any_live: LiveSystem) -> None:
    lines = any_live.command.run("stream", "echo", str(any_live.images), "--count", "3").stdout.splitlines()
    assert len(lines) == 3
    assert re.fullmatch(r" *\d+  48x64 uint16  min \d+  max 3071  mean .*  \[\d+ 1 2 3 4 5 …\]", lines[0])
    report = json.loads(
        any_live.command.run("stream", "echo", str(any_live.images), "--count", "1", "--json").stdout
    )
    assert (report["shape"], report["dtype"], report["max"]) == ([48, 64], "uint16", 3071)
    assert report["seq"].isdecimal()


def test_echo_writes_frames_as_png_images(live: LiveSystem, tmp_path: Path) -> None:
    done = live.command.run("stream", "echo", str(live.images), "--image", str(tmp_path / "frame.png"))
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1
    content = (tmp_path / "frame.png").read_bytes()
    assert content.startswith(SIGNATURE)
    assert struct.unpack_from(">IIBB", content, 16) == (64, 48, 16, 0)
    many = ["--image", str(tmp_path / "f-{seq}.png"), "--count", "2", "--latest"]
    live.command.run("stream", "echo", str(live.images), *many)
    assert len(list(tmp_path.glob("f-*.png"))) == 2
    assert not list(tmp_path.glob(".*")), "no temporary files remain"
    misnamed = live.command.run("stream", "echo", str(live.images), "--image", str(tmp_path / "frame.jpg"))
    assert misnamed.returncode == 2
    assert "so use FILE.png" in misnamed.stderr


def test_watch_reports_all_streams_until_ctrl_c(any_live: LiveSystem) -> None:
    with running(any_live.command.start("stream", "watch", "--json", "--period", "0.3")) as watcher:
        assert watcher.stdout is not None
        seen: dict[int, dict] = {}
        while seen.get(any_live.images, {}).get("hz") is None or any_live.idle not in seen:
            line = json.loads(watcher.stdout.readline())
            seen[line["stream_id"]] = line
        watcher.send_signal(signal.SIGINT)
        watcher.communicate(timeout=60)
    assert watcher.returncode == 0
    images = seen[any_live.images]
    assert (images["shape"], images["dtype"]) == ([48, 64], "uint16")
    assert 1 < images["hz"] < 400
    assert images["bytes_per_second"] == pytest.approx(images["hz"] * IMAGE.nbytes)
    assert "skipped" not in images["dropped"]
    assert seen[any_live.idle]["seq"] is None


def test_watch_prints_plain_lines_without_a_terminal(live: LiveSystem) -> None:
    output = live.command.run("stream", "watch", "--count", "2").stdout
    assert re.search(rf"^{live.images}  .* Hz  .*/s  48x64  uint16  seq \d+  dropped ", output, re.M)
    assert f"{live.idle} no frame seen yet" in output
    assert "\x1b" not in output


@pytest.mark.parametrize("command", ["hz", "echo"])
def test_ctrl_c_exits_with_status_0(live: LiveSystem, command: str) -> None:
    more = ["--period", "0.2"] if command == "hz" else []
    with running(live.command.start("stream", command, str(live.images), *more)) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 0


def test_idle_and_missing_streams_have_different_errors(live: LiveSystem) -> None:
    for command in ("hz", "echo"):
        idle = live.command.run("stream", command, str(live.idle), "--timeout", "1.5")
        assert idle.returncode == 1
        assert idle.stderr == (
            f"error: no frame within 1.5 s: stream {live.idle} is announced, but no frames are published\n"
        )
        missing = live.command.run("stream", command, "9", "--timeout", "1.5")
        assert missing.returncode == 1
        assert missing.stderr == (
            f"error: stream 9 was not announced within 1.5 s; announced are {live.images}, {live.idle}\n"
        )


def test_regions_outside_the_base_directory_are_rejected(live: LiveSystem, tmp_path: Path) -> None:
    other_base = replace(live.command, shm_base=tmp_path)
    done = other_base.run("stream", "echo", str(live.images), "--count", "1")
    assert done.returncode == 1
    assert "refused" in done.stderr
    output = other_base.run("stream", "watch", "--count", "3", "--period", "0.5").stdout
    assert "refused" in output


def test_stream_commands_create_no_files(live: LiveSystem) -> None:
    before = sorted(live.command.shm_base.rglob("*"))
    live.command.run("stream", "ls")
    live.command.run("stream", "echo", str(live.images), "--count", "2")
    assert sorted(live.command.shm_base.rglob("*")) == before


def test_commands_without_streams_print_a_message(command_line: CommandLine) -> None:
    with tp.MediaDriver(command_line.aeron_dir):
        done = command_line.run("stream", "ls")
        assert (done.returncode, done.stdout) == (0, "")
        assert done.stderr == "no stream is announced on this media driver\n"
        assert command_line.json("stream", "ls") == []
        watch = command_line.run("stream", "watch", "--timeout", "1")
        assert watch.returncode == 1
        assert watch.stderr == "error: no stream is announced on this media driver within 1 s\n"
    without_driver = command_line.run("stream", "ls")
    assert without_driver.returncode == 1
    assert "no media driver is running" in without_driver.stderr
    assert command_line.run("stream", "echo", "0").returncode == 2


RUN_AS_OTHER_USER = """
import os, sys
from tensorpool.cli import cli, main
# The other user may not be allowed to read the package.
assert [*cli.commands.values()]
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
sys.argv[1:] = ["stream", "ls"]
main()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to change the user")
def test_errors_name_directories_of_another_user(command_line: CommandLine, tmp_path: Path) -> None:
    def list_streams(state: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", RUN_AS_OTHER_USER],
            env=command_line.environment(XDG_STATE_HOME=state),
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
        assert done.returncode == 1
        return done.stderr

    with tp.MediaDriver(command_line.aeron_dir), tempfile.TemporaryDirectory() as state:
        os.chown(state, 65534, 65534)
        output = list_streams(state)
        assert f"{command_line.aeron_dir} belongs to root, and you have no access to it" in output
        (tmp_path / "closed").mkdir(mode=0o700)
        command_line.aeron_dir.chmod(0o755)
        output = list_streams(str(tmp_path / "closed"))
        assert re.fullmatch(r"error: .*/closed/.*: Permission denied; .*tensorpool doctor.*\n", output)


@pytest.mark.leaves_files("the first producer is killed")
def test_echo_continues_after_a_producer_restart(command_line: CommandLine, free_stream_id: int) -> None:
    with tp.MediaDriver(command_line.aeron_dir), running(start_camera(command_line, free_stream_id)) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "up\n"
        echo = command_line.start("stream", "echo", str(free_stream_id), "--json", stderr=subprocess.PIPE)
        with running(echo):
            assert echo.stdout is not None
            before = json.loads(echo.stdout.readline())
            first.kill()
            first.wait(TIMEOUT_S)
            with running(start_camera(command_line, free_stream_id)):
                while (line := json.loads(echo.stdout.readline()))["epoch"] == before["epoch"]:
                    pass
                echo.send_signal(signal.SIGINT)
                output = echo.communicate(timeout=TIMEOUT_S)[1]
    assert int(line["epoch"]) > int(before["epoch"])
    assert output == f"the stream has a new epoch: {line['epoch']}\n"
    assert echo.returncode == 0


def start_camera(command_line: CommandLine, stream_id: int) -> subprocess.Popen[str]:
    """Starts a producer process."""
    script = (
        "import time, numpy as np, tensorpool as tp\n"
        "with tp.open('standalone', media_driver='external') as ctx:\n"
        f"    with ctx.producer({stream_id}, pools=['4KiB'], nslots=8) as camera:\n"
        "        print('up', flush=True)\n"
        "        while True:\n"
        "            camera.offer(np.zeros((8, 8), np.uint8))\n"
        "            time.sleep(0.01)\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", script], env=command_line.environment(), stdout=subprocess.PIPE, text=True
    )
