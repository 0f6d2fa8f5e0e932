"""`tensorpool service`, verb by verb, against a service in another process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import tensorpool as tp


class Lamp(tp.Service, name="lamp"):
    """Shines."""

    on = tp.Property(False)
    level = tp.Property(0.5, minimum=0.0, maximum=1.0)
    serial = tp.Property(b"\x01\x02", writable=False)

    @tp.command
    def blink(self, times: int = 1) -> dict[str, int]:
        return {"times": times}

    @tp.command(needs_token=True)
    def smash(self) -> str:
        return "crash"


@pytest.fixture
def lamp(aeron_dir: Path) -> Iterator[str]:
    with (
        tp.MediaDriver(str(aeron_dir)),
        tp.open("standalone", aeron_dir=str(aeron_dir)) as ctx,
        ctx.serve(Lamp(token="t0ken")),
    ):
        yield str(aeron_dir)


def command(aeron_dir: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tensorpool", "service", *arguments],
        env={**os.environ, "AERON_DIR": aeron_dir, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_look_and_steer(lamp: str) -> None:
    assert command(lamp, "ls").stdout.startswith("service:lamp ")
    assert json.loads(command(lamp, "ls", "--json").stdout)[0]["name"] == "lamp"
    assert "service:lamp is alive" in command(lamp, "ping", "lamp").stdout
    assert command(lamp, "get", "lamp", "level").stdout == "0.5\n"
    assert command(lamp, "get", "lamp").stdout == 'on = false\nlevel = 0.5\nserial = {"hex": "0102"}\n'
    assert json.loads(command(lamp, "get", "lamp", "--json").stdout)["on"] is False
    assert command(lamp, "set", "lamp", "on", "true").stdout == "true\n"
    assert command(lamp, "set", "lamp", "level", "1").stdout == "1.0\n"
    assert json.loads(command(lamp, "call", "lamp", "blink", "times=3").stdout) == {"times": 3}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["set", "lamp", "level", "2"], "level is at most 1.0, not 2.0"),
        (["set", "lamp", "level", "bright"], "'bright' is not of type float"),
        (["set", "lamp", "serial", "00"], "serial is read-only"),
        (["get", "lamp", "colour"], "no property 'colour'"),
        (["call", "lamp", "smash"], "needs the service's token"),
        (["ping", "nobody", "--timeout", "0.5"], "no service service:nobody replies"),
    ],
)
def test_failures_are_one_sentence_and_status_1(lamp: str, arguments: list[str], words: str) -> None:
    done = command(lamp, *arguments)
    assert done.returncode == 1
    assert done.stdout == ""
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_misuse_is_status_2(lamp: str) -> None:
    assert command(lamp, "call", "lamp", "blink", "nonsense").returncode == 2
    assert command(lamp, "get").returncode == 2


def test_the_token_comes_by_environment_and_never_back(lamp: str) -> None:
    done = command(lamp, "call", "lamp", "smash", TENSORPOOL_TOKEN="t0ken")
    assert done.stdout == '"crash"\n'
    assert "t0ken" not in done.stdout + done.stderr


def test_no_media_driver_is_a_clear_sentence(aeron_dir: Path) -> None:
    done = command(str(aeron_dir), "ls")
    assert done.returncode == 1
    assert "no media driver is running" in done.stderr


@pytest.mark.parametrize("verb", [["log"], ["watch", "lamp", "--json"]])
def test_the_status_stream_is_printed_as_json_lines_until_ctrl_c(lamp: str, verb: list[str]) -> None:
    watcher = subprocess.Popen(
        [sys.executable, "-m", "tensorpool", "service", *verb],
        env={**os.environ, "AERON_DIR": lamp},
        stdout=subprocess.PIPE,
        text=True,
    )
    stop = threading.Event()

    def steer() -> None:
        with tp.open(aeron_dir=lamp, media_driver="external") as ctx, ctx.service("lamp") as client:
            while not stop.is_set():
                client.set("level", 0.25)

    steering = threading.Thread(target=steer)
    steering.start()
    try:
        assert watcher.stdout is not None
        line = json.loads(watcher.stdout.readline())
        watcher.send_signal(signal.SIGINT)
        watcher.communicate(timeout=60)
    finally:
        stop.set()
        steering.join()
        watcher.kill()
        watcher.communicate()
    assert (line["tag"], line["key"], line["value"]) == ("service:lamp", "level", 0.25)
    assert isinstance(line["correlation_id"], str)
    assert watcher.returncode == 0
