"""A driver, cameras and recorders, each a process; and what has to be in the recording at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tensorpool import recording
from tests.fork_server import ForkServer
from tests.integration.recovery.deployment import Deployment, DriverService, Periods
from tests.remote_process import RemoteProcess

from .roles import Camera, Taper, pattern

# Its threads, if it has any, start now: before the first snapshot of a leak check.
pa.table({"a": [1]}).column(0).to_pylist()


@dataclass(kw_only=True)
class Studio(Deployment):
    """All processes of one test, and the recording that they make."""

    root: Path

    def open(self) -> DriverService:
        """A media driver and an SHM driver."""
        self.driver()
        return self.service()

    def camera(self, stream_id: int | None = None, **options: Any) -> RemoteProcess:
        """A producer that has offered nothing yet."""
        remote = self.start(Camera, self.options)
        remote.call("produce", stream_id=stream_id or self.stream_id, **options)
        return remote

    def taper(self, *streams: int, slow: float | None = None, **options: Any) -> RemoteProcess:
        """A recorder that records, of the one stream unless others are named."""
        remote = self.start(Taper, self.options)
        if slow is not None:
            remote.call("slow_disk", bytes_per_s=slow)
        remote.call("record", root=str(self.root), streams=list(streams or (self.stream_id,)), **options)
        return remote

    def has_rows(self, taper: RemoteProcess, rows: int) -> None:
        self.until(lambda: taper.call("stats")["rows"] >= rows)

    def has_all(self, taper: RemoteProcess, camera: RemoteProcess) -> dict[str, Any]:
        """Waits until the recorder's account reaches the last frame that was offered; gives the account."""
        written = camera.call("written")

        def account() -> Any:
            for one in taper.call("ledger"):
                if int(one["epoch"]) == written["epoch"] and int(one["last_seq"]) == written["next_seq"] - 1:
                    return one
            return None

        found: dict[str, Any] = self.until(account)
        return found

    def check(self, stream_id: int | None = None) -> list[recording.RecordingLedger]:
        """What is there is what was filmed, and everything else is accounted for."""
        found = recording.verify(self.root)
        assert found.problems == []
        with recording.open(self.root) as opened:
            for frame in opened.frames(stream_id or self.stream_id):
                # A producer that gets a new epoch in the middle of an offer begins with the number it had.
                said = int(frame.payload[:8].view(np.uint64)[0])
                assert frame.seq in (said, 0), frame
                assert np.array_equal(frame.payload, pattern(said, frame.nbytes)), frame
                assert frame.valid()
            ledgers = opened.ledger(stream_id or self.stream_id)
        assert all(one.balanced for one in ledgers), ledgers
        assert all("unexplained" not in one.gaps for one in ledgers), ledgers
        return ledgers


@pytest.fixture(scope="session")
def recorder_fork_server() -> Iterator[ForkServer]:
    with ForkServer(
        "tests.integration.faults.forking_process",
        f"{__package__}.roles",
        "tests.integration.recovery.client_process",
    ) as fork_server:
        yield fork_server


@pytest.fixture
def studio(
    aeron_dir: Path,
    shm_base: Path,
    free_stream_id: int,
    tmp_path: Path,
    wait_until: Callable[..., Any],
    recorder_fork_server: ForkServer,
) -> Iterator[Studio]:
    times = Periods()
    with ExitStack() as stack:
        studio = Studio(
            aeron_dir,
            shm_base,
            free_stream_id,
            times.announce,
            stack,
            config=tmp_path / "tensorpool.toml",
            wait_until=wait_until,
            fork_server=recorder_fork_server,
            root=tmp_path / "recording",
        )
        studio.configure(times)
        yield studio
