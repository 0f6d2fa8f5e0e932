"""Deployments of a driver, cameras and recorders, each a process, and the checks of their recording."""

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

from .roles import Camera, RecorderProcess, pattern

# Arrow starts its threads now, before the first snapshot of a leak check.
pa.table({"a": [1]}).column(0).to_pylist()


@dataclass(kw_only=True)
class RecorderDeployment(Deployment):
    """All processes of one test, and their recording."""

    root: Path

    def open(self) -> DriverService:
        """A media driver and an SHM driver."""
        self.driver()
        return self.service()

    def camera(self, stream_id: int | None = None, **options: Any) -> RemoteProcess:
        """A producer without frames yet."""
        remote = self.start(Camera, self.options)
        remote.call("produce", stream_id=stream_id or self.stream_id, **options)
        return remote

    def recorder(self, *streams: int, disk_bytes_per_s: float | None = None, **options: Any) -> RemoteProcess:
        """A running recorder of the given streams, or of the deployment's stream."""
        remote = self.start(RecorderProcess, self.options)
        if disk_bytes_per_s is not None:
            remote.call("slow_disk", bytes_per_s=disk_bytes_per_s)
        remote.call("record", root=str(self.root), streams=list(streams or (self.stream_id,)), **options)
        return remote

    def wait_for_rows(self, recorder: RemoteProcess, rows: int) -> None:
        """Waits until the recorder has written that many rows."""
        self.until(lambda: recorder.call("stats")["rows"] >= rows)

    def wait_for_all(self, recorder: RemoteProcess, camera: RemoteProcess) -> dict[str, Any]:
        """Waits until the recorder's ledger includes the last offered frame; returns the ledger."""
        written = camera.call("written")

        def find_ledger() -> Any:
            for ledger in recorder.call("ledger"):
                is_complete = int(ledger["last_seq"]) == written["next_seq"] - 1
                if int(ledger["epoch"]) == written["epoch"] and is_complete:
                    return ledger
            return None

        ledger: dict[str, Any] = self.until(find_ledger)
        return ledger

    def check(self, stream_id: int | None = None) -> list[recording.RecordingLedger]:
        """Every recorded frame has its pattern, and every ledger balances."""
        assert recording.verify(self.root).problems == []
        with recording.open(self.root) as opened:
            for frame in opened.frames(stream_id or self.stream_id):
                # A producer that gets a new epoch during an offer writes the pattern of the old sequence.
                pattern_seq = int(frame.payload[:8].view(np.uint64)[0])
                assert frame.seq in (pattern_seq, 0), frame
                assert np.array_equal(frame.payload, pattern(pattern_seq, frame.nbytes)), frame
                assert frame.valid()
            ledgers = opened.ledger(stream_id or self.stream_id)
        assert all(ledger.balanced for ledger in ledgers), ledgers
        assert all("unexplained" not in ledger.gaps for ledger in ledgers), ledgers
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
def deployment(
    aeron_dir: Path,
    shm_base: Path,
    free_stream_id: int,
    tmp_path: Path,
    wait_until: Callable[..., Any],
    recorder_fork_server: ForkServer,
) -> Iterator[RecorderDeployment]:
    times = Periods()
    with ExitStack() as stack:
        deployment = RecorderDeployment(
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
        deployment.configure(times)
        yield deployment
