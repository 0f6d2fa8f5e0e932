"""The progress line of `tensorpool record`: the most important parts that fit."""

from __future__ import annotations

import io
import logging
import sys
from dataclasses import replace

import pyte
import pytest

from tensorpool.cli.record import ProgressLine, format_progress
from tensorpool.recorder.state import RecorderStats

BUSY = RecorderStats(
    state="recording",
    problem=None,
    seconds=3725.0,
    streams=(1, 2),
    rows=123_456,
    payload_bytes=1 << 40,
    gaps={"late": 1_200, "disk_full": 7},
    rows_per_s=1234.4,
    bytes_per_s=800 * 2**20,
    backlog_bytes=8 << 20,
    buffer_bytes=256 << 20,
    disk_free_bytes=120 << 30,
)


def test_line_has_all_parts_when_there_is_room() -> None:
    assert format_progress(BUSY).split("  ") == [
        "recording 62 min", "123,456 frames", "1,234 frames/s", "800 MiB/s", "backlog 8 MiB of 256 MiB",
        "disk left 120 GiB", "gaps disk_full 7, late 1,200",
    ]  # fmt: skip


@pytest.mark.parametrize("columns", range(1, 160))
def test_line_never_exceeds_the_width(columns: int) -> None:
    text = format_progress(BUSY, columns)
    assert 0 < len(text) <= columns
    if columns >= 10:
        assert "gaps" in text
    if columns >= 79:
        for part in ("1,234/s", "800 MiB/s", "backlog 3%", "disk left 120 GiB", "gaps 1,207"):
            assert part in text or columns > 100


class FakeTerminal(io.StringIO):
    """A terminal of 80 columns."""

    def isatty(self) -> bool:
        return True

    @property
    def lines(self) -> list[str]:
        screen = pyte.Screen(80, 24)
        pyte.Stream(screen).feed(self.getvalue().replace("\n", "\r\n"))
        return [line.rstrip() for line in screen.display if line.strip()]


def test_log_messages_are_above_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = FakeTerminal()
    monkeypatch.setattr(sys, "stderr", screen)
    progress = ProgressLine(quiet=False)
    log = logging.Logger("a test")
    log.addHandler(logging.StreamHandler(progress))
    log.warning("before")
    progress.show(BUSY)
    assert screen.lines == ["before", format_progress(BUSY, 79)]
    log.error("there is no room")
    assert screen.lines == ["before", "there is no room", format_progress(BUSY, 79)]
    quiet = replace(BUSY, gaps={}, rows=1)
    progress._next = 0.0
    progress.show(quiet)
    assert screen.lines == ["before", "there is no room", format_progress(quiet, 79)]
    progress.end()
    log.warning("behind")
    assert screen.lines == ["before", "there is no room", format_progress(quiet, 79), "behind"]
