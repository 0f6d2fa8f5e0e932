"""Commands that look at a running system: where nothing runs, they say so without waiting."""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tensorpool import context
from tensorpool.cli.options import ConnectOptions
from tensorpool.errors import MediaDriverUnavailable

_COMMANDS = 4096


class Asked(Exception):
    """The media driver was asked, which takes seconds where it does not answer."""


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], Any]:
    def ask(**_: Any) -> None:
        raise Asked

    monkeypatch.setattr(context, "open", ask)
    monkeypatch.delenv("TENSORPOOL_CONFIG", raising=False)

    def look() -> None:
        with ConnectOptions(None, str(tmp_path / "aeron"), 5.0, False).context():
            pass

    return look


def mark(directory: Path, *, heartbeat_ms: int, version: int = 1, pid: int = 1) -> None:
    """A mark file as a media driver leaves it."""
    directory.mkdir(exist_ok=True)
    head = struct.pack("<iiiiiiqqq", version, _COMMANDS, 0, 0, 0, 0, 0, 0, pid).ljust(128, b"\0")
    ring = bytearray(_COMMANDS)
    struct.pack_into("<q", ring, _COMMANDS - 768 + 640, heartbeat_ms)
    (directory / "cnc.dat").write_bytes(head + ring)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_no_directory_is_told_at_once(look: Callable[[], Any]) -> None:
    with pytest.raises(
        MediaDriverUnavailable, match=r"no media driver is running in .*start tensorpool driver"
    ):
        look()


@pytest.mark.parametrize("heartbeat", [lambda: now_ms() - 60_000, lambda: -1])
def test_what_a_driver_left_is_told_at_once(
    look: Callable[[], Any], tmp_path: Path, heartbeat: Callable[[], int]
) -> None:
    mark(tmp_path / "aeron", heartbeat_ms=heartbeat())
    with pytest.raises(MediaDriverUnavailable, match="runs no more; start tensorpool driver"):
        look()


def test_a_driver_that_was_stopped_is_not_said_to_be_gone(look: Callable[[], Any], tmp_path: Path) -> None:
    mark(tmp_path / "aeron", heartbeat_ms=now_ms() - 60_000, pid=os.getpid())
    with (
        (tmp_path / "aeron" / "cnc.dat").open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ),
        pytest.raises(MediaDriverUnavailable, match="does not answer; tensorpool doctor"),
    ):
        look()


def test_a_driver_that_is_starting_is_waited_for(look: Callable[[], Any], tmp_path: Path) -> None:
    (tmp_path / "aeron").mkdir()
    with pytest.raises(Asked):
        look()
    for version in (0, 1):
        mark(tmp_path / "aeron", heartbeat_ms=0, version=version)
        with pytest.raises(Asked):
            look()


def test_a_driver_that_was_silent_for_a_moment_is_asked(look: Callable[[], Any], tmp_path: Path) -> None:
    mark(tmp_path / "aeron", heartbeat_ms=now_ms() - 1_000)
    with pytest.raises(Asked):
        look()


def test_the_directory_of_the_configuration_is_looked_at(
    look: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "client.toml"
    file.write_text(f'[aeron]\ndir = "{tmp_path / "nothing"}"\n')
    with (
        pytest.raises(MediaDriverUnavailable, match=r"running in \S+/nothing;"),
        ConnectOptions(str(file), None, 5.0, False).context(),
    ):
        pass
