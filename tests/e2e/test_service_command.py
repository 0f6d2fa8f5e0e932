"""The commands of `tensorpool service`, run as processes against a service."""

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
    """A service with properties and commands."""

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
    """A running service; the directory of its media driver."""
    with (
        tp.MediaDriver(str(aeron_dir)),
        tp.open("standalone", aeron_dir=str(aeron_dir)) as ctx,
        ctx.serve(Lamp(token="t0ken")),
    ):
        yield str(aeron_dir)


def command(aeron_dir: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs `tensorpool service …`."""
    return subprocess.run(
        [sys.executable, "-m", "tensorpool", "service", *arguments],
        env={**os.environ, "AERON_DIR": aeron_dir, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_properties_and_commands_are_read_and_changed(lamp: str) -> None:
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
    ("arguments", "expected"),
    [
        (["set", "lamp", "level", "2"], "level is at most 1.0, not 2.0"),
        (["set", "lamp", "level", "bright"], "'bright' is not of type float"),
        (["set", "lamp", "serial", "00"], "serial is read-only"),
        (["get", "lamp", "colour"], "no property 'colour'"),
        (["call", "lamp", "smash"], "needs the service's token"),
        (["ping", "nobody", "--timeout", "0.5"], "no service service:nobody replies"),
    ],
)
def test_failures_print_one_line_and_exit_with_1(lamp: str, arguments: list[str], expected: str) -> None:
    result = command(lamp, *arguments)
    assert result.returncode == 1
    assert result.stdout == ""
    assert expected in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_usage_errors_exit_with_2(lamp: str) -> None:
    assert command(lamp, "call", "lamp", "blink", "nonsense").returncode == 2
    assert command(lamp, "get").returncode == 2


def test_token_of_the_environment_is_not_printed(lamp: str) -> None:
    result = command(lamp, "call", "lamp", "smash", TENSORPOOL_TOKEN="t0ken")
    assert result.stdout == '"crash"\n'
    assert "t0ken" not in result.stdout + result.stderr


def test_missing_media_driver_is_reported(aeron_dir: Path) -> None:
    result = command(str(aeron_dir), "ls")
    assert result.returncode == 1
    assert "no media driver is running" in result.stderr


@pytest.mark.parametrize("arguments", [["log"], ["watch", "lamp", "--json"]])
def test_status_stream_is_printed_as_json_lines(lamp: str, arguments: list[str]) -> None:
    watcher = subprocess.Popen(
        [sys.executable, "-m", "tensorpool", "service", *arguments],
        env={**os.environ, "AERON_DIR": lamp},
        stdout=subprocess.PIPE,
        text=True,
    )
    stop = threading.Event()

    def change_level() -> None:
        with tp.open(aeron_dir=lamp, media_driver="external") as ctx, ctx.service("lamp") as client:
            while not stop.is_set():
                client.set("level", 0.25)

    changer = threading.Thread(target=change_level)
    changer.start()
    try:
        assert watcher.stdout is not None
        line = json.loads(watcher.stdout.readline())
        watcher.send_signal(signal.SIGINT)
        watcher.communicate(timeout=60)
    finally:
        stop.set()
        changer.join()
        watcher.kill()
        watcher.communicate()
    assert (line["tag"], line["key"], line["value"]) == ("service:lamp", "level", 0.25)
    assert isinstance(line["correlation_id"], str)
    assert watcher.returncode == 0
