"""How the outside learns that a role is up."""

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
    """A socket as systemd has one, and its name as NOTIFY_SOCKET has it."""
    name = str(tmp_path / "notify") if request.param == "path" else f"@tensorpool-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind("\0" + name[1:] if name.startswith("@") else name)
        server.setblocking(False)
        yield name, lambda: received(server)


def received(server: socket.socket) -> list[str]:
    found = []
    while True:
        try:
            found.append(server.recv(4096).decode())
        except BlockingIOError:
            return found


def test_the_file_holds_the_process_id_while_the_role_is_ready(tmp_path):
    path = tmp_path / "ready"
    readiness = Readiness(path, environ={})
    readiness.starting()
    assert not path.exists()
    readiness.ready()
    assert path.read_text() == f"{os.getpid()}\n"
    assert set(os.listdir(tmp_path)) == {"ready", "state"}
    readiness.stopping()
    assert not path.exists()


def test_what_a_dead_one_left_goes_at_the_start(tmp_path):
    path = tmp_path / "ready"
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    for left in (f"{child.pid}\n", "", "garbage", "0", "9" * 400, "-1"):
        path.write_text(left)
        Readiness(path, environ={}).starting()
        assert not path.exists(), left


def test_the_file_of_a_living_one_is_left_alone(tmp_path):
    path = tmp_path / "ready"
    path.write_text(f"{os.getppid()}\n")
    second = Readiness(path, environ={})
    second.starting()
    second.stopping()
    assert path.read_text() == f"{os.getppid()}\n"


def test_a_file_taken_over_by_another_is_not_removed(tmp_path):
    path = tmp_path / "ready"
    readiness = Readiness(path, environ={})
    readiness.ready()
    path.write_text(f"{os.getppid()}\n")
    readiness.stopping()
    assert path.exists()


def test_a_missing_directory_is_told_before_the_role_starts(tmp_path):
    with pytest.raises(ConfigError, match="there is no directory"):
        Readiness(tmp_path / "none" / "ready", environ={}).starting()


def test_a_file_that_cannot_be_written_is_logged_and_leaves_nothing(tmp_path, caplog):
    path = tmp_path / "ready"
    path.mkdir()
    Readiness(path, environ={}).ready()
    assert "cannot write the ready file" in caplog.text
    assert set(os.listdir(tmp_path)) == {"ready", "state"}


def test_systemd_hears_of_ready_reload_and_stop(listener):
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


def test_the_watchdog_is_fed_at_twice_its_pace(listener):
    name, messages = listener
    clock = ManualClock()
    readiness = Readiness(clock=clock, environ={"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "1000000"})
    heard = []
    for _ in range(100):
        readiness.alive()
        heard.append(messages())
        clock.advance(0.1)
    # Every half second of the ten.
    assert heard == [["WATCHDOG=1"], [], [], [], []] * 20


@pytest.mark.parametrize(
    "environ", [{}, {"WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "x"}]
)
def test_a_watchdog_that_is_not_ours_is_not_fed(listener, environ):
    name, messages = listener
    Readiness(environ={"NOTIFY_SOCKET": name, **environ}).alive()
    assert messages() == []


def test_nobody_listening_ends_nothing(tmp_path, caplog):
    Readiness(environ={"NOTIFY_SOCKET": str(tmp_path / "gone")}).ready()
    assert "cannot notify" in caplog.text
