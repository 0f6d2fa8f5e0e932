"""`tensorpool stream`, verb by verb, on streams of a living system."""

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
from tests.e2e.commandline import PATIENCE_S, CommandLine, filming, running
from tests.remote import Background

IMAGE = np.arange(48 * 64, dtype=np.uint16).reshape(48, 64)
SIGNATURE = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class Live:
    """Two streams at work: pictures, and one that was announced and has no frames."""

    command: CommandLine
    pictures: int
    silent: int


@pytest.fixture(autouse=True)
def _often_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks around listens for a period and a half: here, and in the commands."""
    monkeypatch.setenv("TENSORPOOL_AERON__ANNOUNCE_PERIOD", "500ms")


@pytest.fixture
def there(aeron_dir: Path, shm_base: Path) -> CommandLine:
    return CommandLine(aeron_dir, shm_base)


@pytest.fixture(params=["standalone", "embedded"])
def any_live(
    request: pytest.FixtureRequest, there: CommandLine, free_stream_ids: Callable[[], int]
) -> Iterator[Live]:
    """With a driver and without: tools look at both alike."""
    with system(request.param, there, free_stream_ids) as live:
        yield live


@pytest.fixture
def live(there: CommandLine, free_stream_ids: Callable[[], int]) -> Iterator[Live]:
    with system("standalone", there, free_stream_ids) as live:
        yield live


@contextmanager
def system(
    mode: Literal["standalone", "embedded"], there: CommandLine, free_stream_ids: Callable[[], int]
) -> Iterator[Live]:
    pictures, silent = free_stream_ids(), free_stream_ids()
    with (
        tp.MediaDriver(there.aeron_dir),
        tp.open(mode, aeron_dir=there.aeron_dir, media_driver="external", shm_base_dir=there.shm_base) as ctx,
        ctx.producer(pictures, pools=["64KiB"], nslots=8) as producer,
        ctx.producer(silent, pools=["4KiB"], nslots=2),
        filming(producer, IMAGE),
    ):
        yield Live(there, pictures, silent)


def test_ls_and_info_tell_of_every_stream(any_live: Live) -> None:
    rows = {one["stream_id"]: one for one in any_live.command.json("stream", "ls")}
    assert sorted(rows) == [any_live.pictures, any_live.silent]
    one = rows[any_live.pictures]
    assert (one["nslots"], [pool["stride_bytes"] for pool in one["pools"]]) == (8, [65536])
    assert one["producer_id"] is not None
    assert isinstance(one["epoch"], str)
    shown = any_live.command.run("stream", "ls").stdout
    assert re.search(rf"{any_live.pictures} .*64KiB", shown)
    info = any_live.command.json("stream", "info", str(any_live.pictures))
    assert info["epoch"] == one["epoch"]
    assert Path(info["directory"]).is_relative_to(any_live.command.shm_base)
    words = any_live.command.run("stream", "info", str(any_live.pictures)).stdout
    assert info["epoch"] in words
    if info["leases"] is None:
        assert "no lease is needed" in words
    else:
        assert [lease["role"] for lease in info["leases"]] == ["producer"]
        assert one["driver"]["consumers"] == 0
        assert "producer" in words


def test_hz_measures_the_rate(live: Live) -> None:
    # The thread of a busy test run may be late, but is never early; what waited for a reader comes at once.
    for clock, most in (("arrival", 400), ("frame", 110)):
        done = live.command.run(
            "stream", "hz", str(live.pictures), "--count", "1", "--period", "2", "--clock", clock, "--json"
        )
        told = json.loads(done.stdout)
        rate = told["rate"]
        assert told["new"] > 1
        assert 1 < rate["hz"] < most
        assert rate["min_s"] <= 1 / rate["hz"] <= rate["max_s"]
    words = live.command.run("stream", "hz", str(live.pictures), "--count", "1", "--period", "0.5").stdout
    assert re.match(r"[\d.]+ Hz  min .* max .* std dev .* window \d+", words)


def test_hz_tells_how_long_frames_take_to_get_here(live: Live) -> None:
    told = json.loads(
        live.command.run("stream", "hz", str(live.pictures), "--count", "2", "--json").stdout.splitlines()[-1]
    )
    latency = told["latency"]
    assert (latency["since"], latency["left_out"]) == ("capture", 0)
    assert 0 < latency["life"]["p50_ns"] <= latency["life"]["p99_ns"] <= latency["life"]["max_ns"]
    words = live.command.run("stream", "hz", str(live.pictures), "--count", "1").stdout
    assert re.search(r"  latency p50 [\d.]+ .?s p99 [\d.]+ .?s", words), words


def test_info_lists_what_the_source_says_of_itself(
    there: CommandLine, free_stream_ids: Callable[[], int]
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
        tp.MediaDriver(there.aeron_dir),
        tp.open("standalone", aeron_dir=there.aeron_dir, shm_base_dir=there.shm_base) as ctx,
        ctx.producer(described, pools=["64KiB"], name="camera", tags=["lab"], metadata=attributes),
        ctx.producer(plain, pools=["4KiB"]),
    ):
        told = there.json("stream", "info", str(described))["metadata"]
        words = there.run("stream", "info", str(described)).stdout
        nothing = there.json("stream", "info", str(plain))
        bare = there.run("stream", "info", str(plain)).stdout
    assert told["version"] == 1
    found = told["attributes"]
    assert (found["serial"], found["gain"], found["roi"]) == ("A1", 2.5, [0, 0, 64, 48])
    assert (found["dark"]["shape"], found["dark"]["dtype"]) == ([4, 6], "uint8")
    assert found["raw"] == {"format": "application/octet-stream", "bytes": 2, "base64": "AAE="}
    assert re.search(r"^metadata +version 1, \d+ attributes *$", words, re.M)
    assert re.search(r"^  serial +A1 *$", words, re.M)
    assert re.search(r"^  dark +array 4x6 uint8 *$", words, re.M)
    assert re.search(r"^  raw +2 bytes of application/octet-stream *$", words, re.M)
    assert "\x1b" not in words
    assert nothing["metadata"] is None
    assert re.search(r"^metadata +none *$", bare, re.M)


def test_watch_tells_the_latency_of_the_slowest_consumer(any_live: Live) -> None:
    with (
        tp.open(
            "standalone",
            aeron_dir=any_live.command.aeron_dir,
            media_driver="external",
            shm_base_dir=any_live.command.shm_base,
        ) as ctx,
        ctx.consumer(any_live.pictures) as consumer,
        running(any_live.command.start("stream", "watch", "--json", "--period", "0.3")) as watcher,
    ):
        assert watcher.stdout is not None
        latency = None
        while latency is None:
            for _ in range(10):
                consumer.receive_or_none(1.0)
            line = json.loads(watcher.stdout.readline())
            latency = line["latency"] if line["stream_id"] == any_live.pictures else None
        watcher.send_signal(signal.SIGINT)
        watcher.communicate(timeout=60)
    # The watcher itself reads too, and does not tell.
    assert latency["consumers"] == 1
    assert 0 < latency["p50_ns"] <= latency["p99_ns"] <= latency["max_ns"]


def test_latency_is_watched_as_what_a_service_says(live: Live) -> None:
    command = live.command
    with (
        tp.open(
            "standalone", aeron_dir=command.aeron_dir, media_driver="external", shm_base_dir=command.shm_base
        ) as ctx,
        ctx.consumer(live.pictures) as consumer,
        running(
            command.start("service", "watch", f"consumer:{live.pictures}", "latency", "--json")
        ) as watcher,
    ):
        assert watcher.stdout is not None
        reading = Background(lambda stop: read_until(stop, consumer))
        line = json.loads(watcher.stdout.readline())
        reading.stop()
        watcher.send_signal(signal.SIGINT)
        watcher.communicate(timeout=60)
    assert (line["tag"], line["key"]) == (f"service:consumer:{live.pictures}", "latency")
    assert json.loads(line["value"])["count"] > 0
    assert watcher.returncode == 0


def read_until(stop: threading.Event, consumer: tp.Consumer) -> None:
    while not stop.is_set():
        consumer.receive_or_none(0.1)


def test_echo_summarizes_frames(any_live: Live) -> None:
    lines = any_live.command.run("stream", "echo", str(any_live.pictures), "--count", "3").stdout.splitlines()
    assert len(lines) == 3
    assert re.fullmatch(r" *\d+  48x64 uint16  min \d+  max 3071  mean .*  \[\d+ 1 2 3 4 5 …\]", lines[0])
    told = json.loads(
        any_live.command.run("stream", "echo", str(any_live.pictures), "--count", "1", "--json").stdout
    )
    assert (told["shape"], told["dtype"], told["max"]) == ([48, 64], "uint16", 3071)
    assert told["seq"].isdecimal()


def test_a_frame_becomes_a_picture(live: Live, tmp_path: Path) -> None:
    done = live.command.run("stream", "echo", str(live.pictures), "--image", str(tmp_path / "frame.png"))
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1
    content = (tmp_path / "frame.png").read_bytes()
    assert content.startswith(SIGNATURE)
    assert struct.unpack_from(">IIBB", content, 16) == (64, 48, 16, 0)
    many = ["--image", str(tmp_path / "f-{seq}.png"), "--count", "2", "--latest"]
    live.command.run("stream", "echo", str(live.pictures), *many)
    assert len(list(tmp_path.glob("f-*.png"))) == 2
    assert not list(tmp_path.glob(".*")), "nothing half-written stays"
    misnamed = live.command.run("stream", "echo", str(live.pictures), "--image", str(tmp_path / "frame.jpg"))
    assert misnamed.returncode == 2
    assert "so use FILE.png" in misnamed.stderr


def test_watch_reports_all_streams_until_ctrl_c(any_live: Live) -> None:
    with running(any_live.command.start("stream", "watch", "--json", "--period", "0.3")) as watcher:
        assert watcher.stdout is not None
        seen: dict[int, dict] = {}
        while seen.get(any_live.pictures, {}).get("hz") is None or any_live.silent not in seen:
            line = json.loads(watcher.stdout.readline())
            seen[line["stream_id"]] = line
        watcher.send_signal(signal.SIGINT)
        watcher.communicate(timeout=60)
    assert watcher.returncode == 0
    pictures = seen[any_live.pictures]
    assert (pictures["shape"], pictures["dtype"]) == ([48, 64], "uint16")
    assert 1 < pictures["hz"] < 400
    assert pictures["bytes_per_second"] == pytest.approx(pictures["hz"] * IMAGE.nbytes)
    assert "skipped" not in pictures["dropped"]
    assert seen[any_live.silent]["seq"] is None


def test_plain_lines_where_there_is_no_terminal(live: Live) -> None:
    words = live.command.run("stream", "watch", "--count", "2").stdout
    assert re.search(rf"^{live.pictures}  .* Hz  .*/s  48x64  uint16  seq \d+  dropped ", words, re.M)
    assert f"{live.silent} no frame seen yet" in words
    assert "\x1b" not in words


@pytest.mark.parametrize("verb", ["hz", "echo"])
def test_ctrl_c_is_a_clean_end(live: Live, verb: str) -> None:
    more = ["--period", "0.2"] if verb == "hz" else []
    with running(live.command.start("stream", verb, str(live.pictures), *more)) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 0


def test_a_silent_stream_and_one_that_is_not_there_are_told_apart(live: Live) -> None:
    for verb in ("hz", "echo"):
        silent = live.command.run("stream", verb, str(live.silent), "--timeout", "1.5")
        assert silent.returncode == 1
        assert silent.stderr == (
            f"error: no frame within 1.5 s: stream {live.silent} is announced, but no frames are published\n"
        )
        missing = live.command.run("stream", verb, "9", "--timeout", "1.5")
        assert missing.returncode == 1
        assert missing.stderr == (
            f"error: stream 9 was not announced within 1.5 s; announced are {live.pictures}, {live.silent}\n"
        )


def test_regions_that_may_not_be_mapped_are_refused_with_the_reason(live: Live, tmp_path: Path) -> None:
    elsewhere = replace(live.command, shm_base=tmp_path)
    done = elsewhere.run("stream", "echo", str(live.pictures), "--count", "1")
    assert done.returncode == 1
    assert "refused" in done.stderr
    words = elsewhere.run("stream", "watch", "--count", "3", "--period", "0.5").stdout
    assert "refused" in words


def test_looking_leaves_no_trace(live: Live) -> None:
    before = sorted(live.command.shm_base.rglob("*"))
    live.command.run("stream", "ls")
    live.command.run("stream", "echo", str(live.pictures), "--count", "2")
    assert sorted(live.command.shm_base.rglob("*")) == before


def test_nothing_is_said_in_words(there: CommandLine) -> None:
    with tp.MediaDriver(there.aeron_dir):
        done = there.run("stream", "ls")
        assert (done.returncode, done.stdout) == (0, "")
        assert done.stderr == "no stream is announced on this media driver\n"
        assert there.json("stream", "ls") == []
        watched = there.run("stream", "watch", "--timeout", "1")
        assert watched.returncode == 1
        assert watched.stderr == "error: no stream is announced on this media driver within 1 s\n"
    gone = there.run("stream", "ls")
    assert gone.returncode == 1
    assert "no media driver is running" in gone.stderr
    assert there.run("stream", "echo", "0").returncode == 2


AS_NOBODY = """
import os, sys
import tensorpool.cli.root  # whoever comes to be may not read where Python lies
from tensorpool.cli import main
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
sys.argv[1:] = ["stream", "ls"]
main()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_places_of_another_user_are_named_as_such(there: CommandLine, tmp_path: Path) -> None:
    def look(state: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", AS_NOBODY],
            env=there.environment(XDG_STATE_HOME=state),
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 1
        return done.stderr

    with tp.MediaDriver(there.aeron_dir), tempfile.TemporaryDirectory() as state:
        os.chown(state, 65534, 65534)
        words = look(state)
        assert f"the media driver in {there.aeron_dir} is root's, and you may not enter there" in words
        (tmp_path / "closed").mkdir(mode=0o700)
        there.aeron_dir.chmod(0o755)
        words = look(str(tmp_path / "closed"))
        assert re.fullmatch(r"error: .*/closed/.*: Permission denied; tensorpool doctor says .*\n", words)


@pytest.mark.leaves_files("the first producer is killed")
def test_echo_goes_on_when_the_producer_was_killed_and_came_back(
    there: CommandLine, free_stream_id: int
) -> None:
    with tp.MediaDriver(there.aeron_dir), running(start_camera(there, free_stream_id)) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "up\n"
        echo = there.start("stream", "echo", str(free_stream_id), "--json", stderr=subprocess.PIPE)
        with running(echo):
            assert echo.stdout is not None
            before = json.loads(echo.stdout.readline())
            first.kill()
            first.wait(PATIENCE_S)
            with running(start_camera(there, free_stream_id)):
                while (line := json.loads(echo.stdout.readline()))["epoch"] == before["epoch"]:
                    pass
                echo.send_signal(signal.SIGINT)
                words = echo.communicate(timeout=PATIENCE_S)[1]
    assert int(line["epoch"]) > int(before["epoch"])
    assert words == f"the stream has a new epoch: {line['epoch']}\n"
    assert echo.returncode == 0


def start_camera(there: CommandLine, stream_id: int) -> subprocess.Popen[str]:
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
        [sys.executable, "-c", script], env=there.environment(), stdout=subprocess.PIPE, text=True
    )
