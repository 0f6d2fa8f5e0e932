"""Connections of commands: without a running media driver they fail at once."""

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


class Opened(Exception):
    """The command opened a context, which takes seconds if the media driver does not answer."""


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], Any]:
    def open_context(**_: Any) -> None:
        raise Opened

    monkeypatch.setattr(context, "open", open_context)
    monkeypatch.delenv("TENSORPOOL_CONFIG", raising=False)

    def connect() -> None:
        with ConnectOptions(None, str(tmp_path / "aeron"), 5.0, False).context():
            pass

    return connect


def write_mark_file(directory: Path, *, heartbeat_ms: int, version: int = 1, pid: int = 1) -> None:
    """Writes the mark file of a media driver."""
    directory.mkdir(exist_ok=True)
    head = struct.pack("<iiiiiiqqq", version, _COMMANDS, 0, 0, 0, 0, 0, 0, pid).ljust(128, b"\0")
    ring = bytearray(_COMMANDS)
    struct.pack_into("<q", ring, _COMMANDS - 768 + 640, heartbeat_ms)
    (directory / "cnc.dat").write_bytes(head + ring)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_missing_directory_fails_at_once(connect: Callable[[], Any]) -> None:
    with pytest.raises(
        MediaDriverUnavailable, match=r"no media driver is running in .*start tensorpool driver"
    ):
        connect()


@pytest.mark.parametrize("heartbeat", [lambda: now_ms() - 60_000, lambda: -1])
def test_stale_heartbeat_fails_at_once(
    connect: Callable[[], Any], tmp_path: Path, heartbeat: Callable[[], int]
) -> None:
    write_mark_file(tmp_path / "aeron", heartbeat_ms=heartbeat())
    with pytest.raises(MediaDriverUnavailable, match="no longer runs; start tensorpool driver"):
        connect()


def test_stopped_media_driver_is_reported_as_not_answering(
    connect: Callable[[], Any], tmp_path: Path
) -> None:
    write_mark_file(tmp_path / "aeron", heartbeat_ms=now_ms() - 60_000, pid=os.getpid())
    with (
        (tmp_path / "aeron" / "cnc.dat").open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ),
        pytest.raises(MediaDriverUnavailable, match="does not answer; see tensorpool doctor"),
    ):
        connect()


def test_starting_media_driver_is_waited_for(connect: Callable[[], Any], tmp_path: Path) -> None:
    (tmp_path / "aeron").mkdir()
    with pytest.raises(Opened):
        connect()
    for version in (0, 1):
        write_mark_file(tmp_path / "aeron", heartbeat_ms=0, version=version)
        with pytest.raises(Opened):
            connect()


def test_late_heartbeat_is_waited_for(connect: Callable[[], Any], tmp_path: Path) -> None:
    write_mark_file(tmp_path / "aeron", heartbeat_ms=now_ms() - 1_000)
    with pytest.raises(Opened):
        connect()


def test_directory_of_the_configuration_is_used(
    connect: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "client.toml"
    file.write_text(f'[aeron]\ndir = "{tmp_path / "nothing"}"\n')
    with (
        pytest.raises(MediaDriverUnavailable, match=r"running in \S+/nothing;"),
        ConnectOptions(str(file), None, 5.0, False).context(),
    ):
        pass
