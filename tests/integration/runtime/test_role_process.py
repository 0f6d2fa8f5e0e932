"""A role as a real process: signals, readiness, reloads, logs, exit status."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROLE = Path(__file__).with_name("role.py")


class RoleProcess:
    """A role's process with its ready file, order file and configuration."""

    def __init__(self, directory: Path, environ: dict[str, str]) -> None:
        self.ready = directory / "ready"
        self.order = directory / "order"
        self.config = directory / "lab.toml"
        self.out = directory / "out"
        self.err = directory / "err"
        self.config.touch()
        self._environ = os.environ | environ

    @contextmanager
    def running(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        command = [
            *(sys.executable, str(ROLE), "--config", str(self.config), "--order", str(self.order)),
            *("--ready-file", str(self.ready), "--log-format", "json", *arguments),
        ]
        with self.out.open("wb") as out, self.err.open("wb") as err:
            child = subprocess.Popen(command, stdout=out, stderr=err, env=self._environ)
        try:
            yield child
        finally:
            if child.poll() is None:
                child.kill()
            child.wait()

    def is_ready(self, child: subprocess.Popen[bytes]) -> bool:
        """Whether the role is ready. Fails the test, with the log, if the process has ended."""
        assert child.poll() is None, self.err.read_text()
        return self.ready.exists() and self.ready.read_text() == f"{child.pid}\n"

    def logs(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.err.read_text().splitlines() if line.startswith("{")]

    def messages(self) -> list[str]:
        return [str(line["message"]) for line in self.logs()]


@pytest.fixture
def role(tmp_path):
    return RoleProcess(tmp_path, {})


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_the_role_in_good_order(role, wait_until, number):
    with role.running() as child:
        wait_until(lambda: role.is_ready(child))
        child.send_signal(number)
        assert child.wait(30) == 0
    assert role.out.read_text() == "closed\n"
    assert not role.ready.exists()
    assert role.messages() == ["sample is ready", "sample has stopped"]
    assert {(line["role"], line["instance"], line["level"]) for line in role.logs()} == {
        ("sample", "", "info")
    }


def test_next_process_replaces_the_ready_file_of_a_killed_one(role, wait_until):
    with role.running() as child:
        wait_until(lambda: role.is_ready(child))
        child.kill()
        child.wait()
    assert role.ready.read_text() == f"{child.pid}\n"
    with role.running() as second:
        wait_until(lambda: role.is_ready(second))
        second.terminate()
        assert second.wait(30) == 0


def test_role_failed_ends_the_process_with_status_one(role, wait_until):
    with role.running() as child:
        wait_until(lambda: role.is_ready(child))
        role.order.write_text("fail")
        assert child.wait(30) == 1
    assert role.err.read_text().splitlines()[-1] == "error: ordered to fail"
    assert role.out.read_text() == "closed\n"
    assert not role.ready.exists()


def test_role_that_fails_to_start_is_never_ready(role):
    role.order.write_text("fail at start")
    with role.running() as child:
        assert child.wait(30) == 1
    assert role.err.read_text().splitlines()[-1] == "error: ordered to fail at start"
    assert role.messages() == []


def test_errors_in_duty_cycles_are_logged_once_and_survived(role, wait_until):
    role.order.write_text("error")
    with role.running() as child:
        wait_until(lambda: "sample: a duty cycle failed: OSError: ordered to raise" in role.messages())
        role.order.write_text("nothing")
        wait_until(lambda: role.is_ready(child))
        child.terminate()
        assert child.wait(30) == 0
    failures = [line for line in role.logs() if "a duty cycle failed" in str(line["message"])]
    assert len(failures) == 1
    assert failures[0]["error"] == "OSError"


def test_hangup_applies_live_settings_and_names_the_others(role, wait_until):
    role.config.write_text('[sample]\nperiod = "1s"\n')
    with role.running() as child:
        wait_until(lambda: role.is_ready(child))
        role.config.write_text('[sample]\nperiod = "2s"\nnamespace = "other"\n[log]\nlevel = "warning"\n')
        child.send_signal(signal.SIGHUP)
        wait_until(lambda: role.out.read_text() == "period 2000000000\n")
        role.config.write_text('[sample]\nperiud = "3s"\n')
        child.send_signal(signal.SIGHUP)
        wait_until(lambda: any("not reloaded" in line for line in role.messages()))
        assert child.poll() is None
        child.terminate()
        assert child.wait(30) == 0
    messages = role.messages()
    assert "sample.period has changed" in messages
    assert "sample.namespace has changed, and takes effect after a restart" in messages
    assert messages[-1].endswith("lab.toml:2: sample.periud: no such key; did you mean 'period'?")
    # The new level suppresses the message about the stop.
    assert "sample has stopped" not in messages


def test_role_process_notifies_systemd_of_every_state(tmp_path, wait_until):
    address = tmp_path / "notify"
    messages: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(address))
        server.settimeout(30)
        role = RoleProcess(tmp_path, {"NOTIFY_SOCKET": str(address), "WATCHDOG_USEC": "20000"})
        with role.running() as child:
            while messages.count("WATCHDOG=1") < 3:
                messages.append(server.recv(1024).decode())
            child.send_signal(signal.SIGHUP)
            while not messages[-1].startswith("RELOADING=1"):
                messages.append(server.recv(1024).decode())
            stamp_us = int(messages[-1].partition("MONOTONIC_USEC=")[2])
            child.terminate()
            while messages[-1] != "STOPPING=1":
                messages.append(server.recv(1024).decode())
            assert child.wait(30) == 0
    assert messages[0] == "READY=1"
    assert messages.count("READY=1") == 2
    assert stamp_us <= time.monotonic_ns() // 1000


def test_invalid_configuration_is_reported_before_the_role_starts(role):
    role.config.write_text("[sample]\nperiod = 5\nnamespace = 5\n")
    with role.running() as child:
        assert child.wait(30) == 1
    errors = role.err.read_text()
    assert errors.startswith("error: 2 problems in the configuration:\n")
    assert f"{role.config}:2: sample.period = 5: " in errors
    assert f"{role.config}:3: sample.namespace = 5: not text" in errors
    assert not role.ready.exists()
