"""One writer at full speed over a tiny ring, three readers, each a process; every frame is accounted for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import tensorpool as tp
from tests.remote_process import RemoteProcess

from .roles import Reader, Writer

WaitUntil = Callable[..., Any]


@dataclass
class Run:
    """One writer and its readers, and what they had to say at the end."""

    writer: RemoteProcess
    readers: list[RemoteProcess]
    wait_until: WaitUntil

    def write(self, frames: int, reply_timeout: float) -> dict[str, Any]:
        ledger: dict[str, Any] = self.writer.call("write", frames=frames, reply_timeout=reply_timeout)
        return ledger

    def finish(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        # A reader that was put to rest at the very end hears nothing more; a few last frames bring it back.
        def all_are_back() -> bool:
            self.write(4, 60)
            newest = self.writer.call("ledger")["next_seq"] - 1
            return all(reader.call("last_seq") >= newest - 16 for reader in self.readers)

        self.wait_until(all_are_back, timeout=60)
        return self.writer.call("ledger"), [reader.call("finish") for reader in self.readers]


@contextmanager
def running(place: tuple[Path, Path, int], payload: int, nslots: int, ways: list[str]) -> Iterator[Any]:
    aeron_dir, base, stream_id = place
    with ExitStack() as stack:
        stack.enter_context(tp.MediaDriver(str(aeron_dir)))
        where = (str(aeron_dir), str(base), stream_id, payload)
        writer = stack.enter_context(RemoteProcess(Writer, *where, nslots))
        readers = [stack.enter_context(RemoteProcess(Reader, *where, way)) for way in ways]
        epoch = writer.call("epoch")

        def run(wait_until: WaitUntil) -> Run:
            wait_until(lambda: all(reader.call("mapped") == epoch for reader in readers))
            return Run(writer, readers, wait_until)

        yield run


@pytest.fixture
def place(aeron_dir: Path, shm_base: Path, free_stream_id: int) -> tuple[Path, Path, int]:
    return aeron_dir, shm_base, free_stream_id


def assert_every_frame_is_accounted_for(written: dict[str, Any], read: list[dict[str, Any]]) -> None:
    assert written["balanced"]
    assert written["committed"] == written["next_seq"], "a sequence is a committed frame"
    assert written["committed"] == written["published"] + sum(written["unpublished"].values())
    for reader in read:
        assert reader["balanced"], reader
        # Nothing came from outside the one epoch, so what was handed out is what the reader looked at.
        assert sum(reader["outside"].values()) == 0, reader
        assert reader["received"] == reader["accepted"], reader
        assert reader["dropped"]["late"] >= reader["overwritten"]
        # They were there before the first frame: the span is everything up to the last one heard.
        assert reader["span"] == reader["last_seq"] + 1
        assert reader["last_accepted"] <= reader["last_seq"] < written["next_seq"]
        # What is missing was never published, unless the reader was put to rest for being slow: Aeron
        # itself loses nothing.
        if not reader["dropped"]["rested"]:
            assert reader["dropped"]["gap"] <= sum(written["unpublished"].values()), reader


def report(
    title: str, frames: int, seconds: float, written: dict[str, Any], read: list[dict[str, Any]]
) -> None:
    print(f"\n{title}: {frames:,} frames in {seconds:.1f} s ({frames / seconds:,.0f}/s), writer {written}")
    for reader in read:
        dropped = {reason: n for reason, n in reader["dropped"].items() if n}
        print(
            f"  accepted {reader['accepted']:,}, of these torn {reader['torn_count']}; "
            f"refused after use {reader['overwritten']:,}, of these torn {reader['torn_but_found_out']:,}; "
            f"span {reader['span']:,}, dropped {dropped}"
        )


@pytest.mark.parametrize(
    ("payload", "nslots", "frames"),
    [
        pytest.param(4096, 4, 1_000_000, id="4KiB-4slots"),
        pytest.param(16384, 2, 500_000, id="16KiB-2slots"),
        pytest.param(
            4096,
            4,
            70_000_000,
            id="4KiB-4slots-long",
            marks=[pytest.mark.long, pytest.mark.timeout(7200)],
        ),
        pytest.param(
            16384,
            2,
            30_000_000,
            id="16KiB-2slots-long",
            marks=[pytest.mark.long, pytest.mark.timeout(7200)],
        ),
    ],
)
@pytest.mark.requirement("wire-8.3-4", "wire-15.21-4", "wire-15.4-1")
def test_a_writer_at_full_speed_tears_no_frame_of_three_readers(
    place: tuple[Path, Path, int], wait_until: WaitUntil, payload: int, nslots: int, frames: int
) -> None:
    with running(place, payload, nslots, ["view", "copy", "newest"]) as start:
        run = start(wait_until)
        began = time.monotonic()
        run.write(frames, reply_timeout=7000)
        seconds = time.monotonic() - began
        written, read = run.finish()
    report(f"{payload} bytes, {nslots} slots", frames, seconds, written, read)
    assert [reader["torn_count"] for reader in read] == [0, 0, 0], read
    assert written["committed"] >= frames
    assert all(reader["accepted"] > frames / 10_000 for reader in read), "the readers hardly saw anything"
    assert_every_frame_is_accounted_for(written, read)


def test_a_reader_that_skips_the_second_look_is_caught(
    place: tuple[Path, Path, int], wait_until: WaitUntil
) -> None:
    """The same with readers that believe what they saw: if nothing is found, the test above is blind."""
    with running(place, 4096, 4, ["careless", "view", "careless"]) as start:
        run = start(wait_until)
        began, frames = time.monotonic(), 0
        for _ in range(20):
            run.write(20_000, reply_timeout=100)
            frames += 20_000
        seconds = time.monotonic() - began
        written, read = run.finish()
    report("without the second look", frames, seconds, written, read)
    assert read[0]["torn_count"] + read[2]["torn_count"] > 0
    assert read[1]["torn_count"] == 0
