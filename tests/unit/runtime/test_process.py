"""Readiness of a role: the ready file and systemd notifications."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from tensorpool.clock import ManualClock
from tensorpool.errors import ConfigError
from tensorpool.runtime import Readiness


@pytest.fixture(params=["path", "abstract"])
def listener(request, tmp_path):
    """The value of NOTIFY_SOCKET, and a function that returns the received messages."""
    name = str(tmp_path / "notify") if request.param == "path" else f"@tensorpool-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind("\0" + name[1:] if name.startswith("@") else name)
        server.setblocking(False)
        yield name, lambda: received(server)


def received(server: socket.socket) -> list[str]:
    messages = []
    while True:
        try:
            messages.append(server.recv(4096).decode())
        except BlockingIOError:
            return messages


def test_ready_file_has_the_process_id_until_stop(tmp_path):
    path = tmp_path / "ready"
    readiness = Readiness(path, environ={})
    readiness.starting()
    assert not path.exists()
    readiness.ready()
    assert path.read_text() == f"{os.getpid()}\n"
    assert set(os.listdir(tmp_path)) == {"ready", "state"}
    readiness.stopping()
    assert not path.exists()


def test_ready_file_of_a_dead_process_is_removed(tmp_path):
    path = tmp_path / "ready"
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    for left in (f"{child.pid}\n", "", "garbage", "0", "9" * 400, "-1"):
        path.write_text(left)
        Readiness(path, environ={}).starting()
        assert not path.exists(), left


def test_ready_file_of_a_live_process_is_kept(tmp_path):
    path = tmp_path / "ready"
    path.write_text(f"{os.getppid()}\n")
    second = Readiness(path, environ={})
    second.starting()
    second.stopping()
    assert path.read_text() == f"{os.getppid()}\n"


def test_ready_file_replaced_by_another_process_is_kept(tmp_path):
    path = tmp_path / "ready"
    readiness = Readiness(path, environ={})
    readiness.ready()
    path.write_text(f"{os.getppid()}\n")
    readiness.stopping()
    assert path.exists()


def test_missing_directory_of_the_ready_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="there is no directory"):
        Readiness(tmp_path / "none" / "ready", environ={}).starting()


def test_failed_write_of_the_ready_file_is_logged(tmp_path, caplog):
    path = tmp_path / "ready"
    path.mkdir()
    Readiness(path, environ={}).ready()
    assert "cannot write the ready file" in caplog.text
    assert set(os.listdir(tmp_path)) == {"ready", "state"}


def test_readiness_notifies_systemd_of_every_state(listener):
    name, messages = listener
    readiness = Readiness(clock=ManualClock(monotonic_ns=5_000_000), environ={"NOTIFY_SOCKET": name})
    readiness.starting()
    assert messages() == []
    readiness.ready("serving")
    readiness.ready()
    assert messages() == ["READY=1\nSTATUS=serving"]
    readiness.reloading()
    readiness.reloaded()
    assert messages() == ["RELOADING=1\nMONOTONIC_USEC=5000", "READY=1"]
    readiness.stopping()
    assert messages() == ["STOPPING=1"]


def test_watchdog_is_notified_twice_per_period(listener):
    name, messages = listener
    clock = ManualClock()
    readiness = Readiness(clock=clock, environ={"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "1000000"})
    sent = []
    for _ in range(100):
        readiness.alive()
        sent.append(messages())
        clock.advance(0.1)
    # Once every half second for ten seconds.
    assert sent == [["WATCHDOG=1"], [], [], [], []] * 20


@pytest.mark.parametrize(
    "environ", [{}, {"WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "x"}]
)
def test_watchdog_of_another_process_is_not_notified(listener, environ):
    name, messages = listener
    Readiness(environ={"NOTIFY_SOCKET": name, **environ}).alive()
    assert messages() == []


def test_missing_notify_socket_is_only_logged(tmp_path, caplog):
    Readiness(environ={"NOTIFY_SOCKET": str(tmp_path / "gone")}).ready()
    assert "cannot notify" in caplog.text
