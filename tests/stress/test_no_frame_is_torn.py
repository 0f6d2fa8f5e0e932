"""A writer at full speed over a small ring and three readers: no torn frame, and balanced ledgers."""

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
    """A writer process and its reader processes."""

    writer: RemoteProcess
    readers: list[RemoteProcess]
    wait_until: WaitUntil

    def write(self, frames: int, reply_timeout: float) -> dict[str, Any]:
        """Writes frames; returns the writer's ledger."""
        ledger: dict[str, Any] = self.writer.call("write", frames=frames, reply_timeout=reply_timeout)
        return ledger

    def finish(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Ends all processes; returns the ledgers of the writer and of the readers."""

        # A rested reader needs a few more frames to reconnect.
        def all_reconnected() -> bool:
            self.write(4, 60)
            newest = self.writer.call("ledger")["next_seq"] - 1
            return all(reader.call("last_seq") >= newest - 16 for reader in self.readers)

        self.wait_until(all_reconnected, timeout=60)
        return self.writer.call("ledger"), [reader.call("finish") for reader in self.readers]


@contextmanager
def running(environment: tuple[Path, Path, int], payload: int, nslots: int, ways: list[str]) -> Iterator[Any]:
    aeron_dir, base, stream_id = environment
    with ExitStack() as stack:
        stack.enter_context(tp.MediaDriver(str(aeron_dir)))
        arguments = (str(aeron_dir), str(base), stream_id, payload)
        writer = stack.enter_context(RemoteProcess(Writer, *arguments, nslots))
        readers = [stack.enter_context(RemoteProcess(Reader, *arguments, way)) for way in ways]
        epoch = writer.call("epoch")

        def run(wait_until: WaitUntil) -> Run:
            wait_until(lambda: all(reader.call("mapped") == epoch for reader in readers))
            return Run(writer, readers, wait_until)

        yield run


@pytest.fixture
def environment(aeron_dir: Path, shm_base: Path, free_stream_id: int) -> tuple[Path, Path, int]:
    return aeron_dir, shm_base, free_stream_id


def assert_ledgers_agree(written: dict[str, Any], read: list[dict[str, Any]]) -> None:
    """Checks that the ledgers of the writer and of the readers add up."""
    assert written["balanced"]
    assert written["committed"] == written["next_seq"], "every sequence is a committed frame"
    assert written["committed"] == written["published"] + sum(written["unpublished"].values())
    for reader in read:
        assert reader["balanced"], reader
        # There is only one epoch, so the received frames are the accepted ones.
        assert sum(reader["outside"].values()) == 0, reader
        assert reader["received"] == reader["accepted"], reader
        assert reader["dropped"]["late"] >= reader["overwritten"]
        # The readers started before the first frame: the span includes all frames up to the last.
        assert reader["span"] == reader["last_seq"] + 1
        assert reader["last_accepted"] <= reader["last_seq"] < written["next_seq"]
        # Aeron loses no descriptor: missing frames were not published, unless the reader was rested.
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
            f"rejected after use {reader['overwritten']:,}, of these torn {reader['torn_rejected']:,}; "
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
def test_writer_at_full_speed_tears_no_frame(
    environment: tuple[Path, Path, int], wait_until: WaitUntil, payload: int, nslots: int, frames: int
) -> None:
    with running(environment, payload, nslots, ["view", "copy", "newest"]) as start:
        run = start(wait_until)
        began = time.monotonic()
        run.write(frames, reply_timeout=7000)
        seconds = time.monotonic() - began
        written, read = run.finish()
    report(f"{payload} bytes, {nslots} slots", frames, seconds, written, read)
    assert [reader["torn_count"] for reader in read] == [0, 0, 0], read
    assert written["committed"] >= frames
    assert all(reader["accepted"] > frames / 10_000 for reader in read), "the readers accepted too few frames"
    assert_ledgers_agree(written, read)


def test_reader_without_validation_is_detected(
    environment: tuple[Path, Path, int], wait_until: WaitUntil
) -> None:
    """The test above would not detect torn frames if readers without validation found none."""
    with running(environment, 4096, 4, ["unvalidated", "view", "unvalidated"]) as start:
        run = start(wait_until)
        began, frames = time.monotonic(), 0
        for _ in range(20):
            run.write(20_000, reply_timeout=100)
            frames += 20_000
        seconds = time.monotonic() - began
        written, read = run.finish()
    report("without validation", frames, seconds, written, read)
    assert read[0]["torn_count"] + read[2]["torn_count"] > 0
    assert read[1]["torn_count"] == 0
