"""The fields of a media driver's mark file, and the interval of its timers."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import tensorpool as tp
from tensorpool.errors import MediaDriverError
from tensorpool.transport.media_driver import measure_timer_interval, read_mark_file

COMMANDS = 4096 + 768
HEARTBEAT_AT = 128 + 4096 + 640


@pytest.fixture
def cnc(tmp_path: Path) -> Path:
    path = tmp_path / "cnc.dat"
    head = struct.pack("<iiiiiiqqq", 512, COMMANDS, 0, 0, 0, 0, 10_000_000_000, 1_700_000_000_000, 77)
    path.write_bytes(head.ljust(128 + COMMANDS, b"\0"))
    return path


class HeartbeatClock:
    """A clock whose sleep writes the heartbeats that fall into it."""

    def __init__(self, path: Path, interval_ms: int) -> None:
        self.path, self.interval_ms, self.at_s = path, interval_ms, 0.0

    def now(self) -> float:
        return self.at_s

    def sleep(self, seconds: float) -> None:
        self.at_s += seconds
        beat = int(self.at_s * 1e3) // self.interval_ms * self.interval_ms
        with self.path.open("r+b") as file:
            file.seek(HEARTBEAT_AT)
            file.write(struct.pack("<q", 1_700_000_000_000 + beat))


@pytest.mark.parametrize(("interval_ms", "expected"), [(2, 0.002), (100, 0.1), (1000, 1.0)])
def test_timer_interval_is_that_of_the_heartbeat(cnc: Path, interval_ms: int, expected: float) -> None:
    clock = HeartbeatClock(cnc, interval_ms)
    patience = 2.5
    measured = measure_timer_interval(cnc, timeout=patience, now=clock.now, sleep=clock.sleep)
    assert measured == pytest.approx(expected, rel=0.2)
    assert clock.at_s <= patience + 0.001


def test_stopped_heartbeat_has_no_interval(cnc: Path) -> None:
    clock = HeartbeatClock(cnc, 1 << 40)
    assert measure_timer_interval(cnc, timeout=1, now=clock.now, sleep=clock.sleep) is None
    assert measure_timer_interval(cnc.with_name("nothing")) is None


def test_mark_file_fields_are_read(cnc: Path) -> None:
    mark = read_mark_file(cnc.parent)
    assert mark is not None
    assert (mark.pid, mark.started_ms, mark.client_liveness_timeout_ns) == (
        77, 1_700_000_000_000, 10_000_000_000,
    )  # fmt: skip
    assert mark.owner_uid == os.getuid()


def test_incomplete_and_foreign_files_are_distinguished(tmp_path: Path, cnc: Path) -> None:
    assert read_mark_file(tmp_path / "nothing") is None
    cnc.write_bytes(b"\0" * 4096)
    assert read_mark_file(cnc.parent) is None, "it is being created"
    cnc.write_bytes(b"\xff" * 4096)
    with pytest.raises(MediaDriverError, match="not a mark file"):
        read_mark_file(cnc.parent)


def test_embedded_media_driver_has_a_short_interval(aeron_dir: Path, wait_until: Callable) -> None:
    with tp.MediaDriver(aeron_dir):
        mark = wait_until(lambda: read_mark_file(aeron_dir))
        assert mark.pid == os.getpid()
        assert mark.age_s(time.time_ns()) < 60
        assert mark.mode == 0o700
        # A busy machine may delay it, but not to Aeron's own default of a second.
        interval = wait_until(lambda: measure_timer_interval(mark.path, timeout=30))
    assert 0.0005 < interval < 0.5
