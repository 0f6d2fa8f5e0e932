"""Steps of CLOCK_REALTIME, as administrators and time servers make them: epochs grow all the same."""

from __future__ import annotations

import random
import struct
import subprocess
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest

from tensorpool.driver import read_holder
from tests.fork_server import ForkServer

from .client_process import ClientProcess
from .deployment import ROUNDS, Deployment

SECOND_NS = 1_000_000_000
YEAR_S = 365 * 86_400
# The media drivers that we start forget a client that gave no sign of life for this long.
LIVENESS_S = 5
STEPS_S = (-3600, 7200, -5 * YEAR_S, 20 * YEAR_S, -30 * YEAR_S, 1, -1)


@pytest.fixture
def step(fleet: Deployment, tmp_path: Path) -> Iterator[Callable[[float], None]]:
    """Sets the time of day of all processes of this test, now and while they run."""
    library, offset = tmp_path / "libstepped_clock.so", tmp_path / "offset"
    source = Path(__file__).with_name("stepped_clock.c")
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    offset.write_bytes(bytes(8))

    def by(seconds: float) -> None:
        with offset.open("r+b") as file:
            (now,) = struct.unpack("<q", file.read(8))
            file.seek(0)
            file.write(struct.pack("<q", now + int(seconds * SECOND_NS)))

    elsewhere = {"LD_PRELOAD": str(library), "STEPPED_CLOCK": str(offset)}
    with ForkServer(ClientProcess.__module__, env=elsewhere) as fleet.fork_server:
        fleet.is_elsewhere = True
        yield by
        fleet.close()


@pytest.mark.requirement("driver-6-1", "driver-10-2")
def test_epochs_grow_across_steps_of_the_clock_and_leases_outlive_them(
    fleet: Deployment, step: Callable[[float], None]
) -> None:
    fleet.driver()
    service = fleet.service()
    consumer, producer = fleet.consumer(), fleet.streaming()
    epoch, years = fleet.flow(consumer), set()
    for turn in range(ROUNDS):
        stories = [member.call("story") for member in (producer, consumer)]
        known = fleet.ask("status")["counters"]["keepalives"]
        seconds = STEPS_S[turn] if turn < len(STEPS_S) else random.choice(STEPS_S)
        step(seconds)
        if seconds < LIVENESS_S:
            # A few keepalives later nothing has happened to anybody.
            fleet.until(lambda: fleet.ask("status")["counters"]["keepalives"] > known + 6)  # noqa: B023
            assert [member.call("story") for member in (producer, consumer)] == stories
            assert fleet.agreed(producer, [consumer]) == epoch
        else:
            # Aeron judges its clients by the time of day, and gives all of them up. They come back.
            epoch = fleet.flow(consumer, after=epoch)
        fleet.ask("revoke", stream_id=fleet.stream_id)
        epoch = fleet.flow(consumer, after=epoch)
        fleet.agreed(producer, [consumer])
        # A driver that starts in the other time has only the mark to grow from.
        if turn % 2:
            service.kill()
        else:
            service.end()
        service = fleet.service()
        epoch = fleet.flow(consumer, after=epoch)
        assert fleet.agreed(producer, [consumer]) == epoch
        holder = read_holder(fleet.base, fleet.namespace)
        assert holder is not None
        years.add(datetime.fromisoformat(holder.started).year)
    assert len(years) > 2, "the driver saw the steps"
    fleet.accounts(producer, [consumer])
