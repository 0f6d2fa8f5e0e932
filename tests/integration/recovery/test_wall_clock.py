"""Steps of CLOCK_REALTIME, as by administrators and time servers: epochs still grow."""

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
# Our media drivers drop a client without activity for this long.
LIVENESS_S = 5
STEPS_S = (-3600, 7200, -5 * YEAR_S, 20 * YEAR_S, -30 * YEAR_S, 1, -1)


@pytest.fixture
def step_clock(deployment: Deployment, tmp_path: Path) -> Iterator[Callable[[float], None]]:
    """Steps the time of day of all processes of this test while they run."""
    library, offset = tmp_path / "libstepped_clock.so", tmp_path / "offset"
    source = Path(__file__).with_name("stepped_clock.c")
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    offset.write_bytes(bytes(8))

    def step_by(seconds: float) -> None:
        with offset.open("r+b") as file:
            (now,) = struct.unpack("<q", file.read(8))
            file.seek(0)
            file.write(struct.pack("<q", now + int(seconds * SECOND_NS)))

    clock_env = {"LD_PRELOAD": str(library), "STEPPED_CLOCK": str(offset)}
    with ForkServer(ClientProcess.__module__, env=clock_env) as deployment.fork_server:
        deployment.is_isolated = True
        yield step_by
        deployment.close()


def keepalives(deployment: Deployment) -> int:
    """Number of keepalives that the driver has received."""
    return int(deployment.call_driver("status")["counters"]["keepalives"])


@pytest.mark.requirement("driver-6-1", "driver-10-2")
def test_epochs_grow_and_leases_last_across_clock_steps(
    deployment: Deployment, step_clock: Callable[[float], None]
) -> None:
    deployment.driver()
    service = deployment.service()
    consumer, producer = deployment.consumer(), deployment.streaming_producer()
    epoch, years = deployment.wait_epoch(consumer), set()
    for turn in range(ROUNDS):
        histories = [client.call("event_history") for client in (producer, consumer)]
        before = keepalives(deployment)
        seconds = STEPS_S[turn] if turn < len(STEPS_S) else random.choice(STEPS_S)
        step_clock(seconds)
        if seconds < LIVENESS_S:
            # No event occurs during the next keepalives.
            deployment.until(lambda: keepalives(deployment) > before + 6)  # noqa: B023
            assert [client.call("event_history") for client in (producer, consumer)] == histories
            assert deployment.wait_agreed(producer, [consumer]) == epoch
        else:
            # Aeron measures the liveness of clients by the time of day and drops all of them. They reconnect.
            epoch = deployment.wait_epoch(consumer, after=epoch)
        deployment.call_driver("revoke", stream_id=deployment.stream_id)
        epoch = deployment.wait_epoch(consumer, after=epoch)
        deployment.wait_agreed(producer, [consumer])
        # A driver that starts after the step knows earlier epochs only from the epoch mark.
        if turn % 2:
            service.kill()
        else:
            service.end()
        service = deployment.service()
        epoch = deployment.wait_epoch(consumer, after=epoch)
        assert deployment.wait_agreed(producer, [consumer]) == epoch
        holder = read_holder(deployment.base, deployment.namespace)
        assert holder is not None
        years.add(datetime.fromisoformat(holder.started).year)
    assert len(years) > 2, "the driver saw the steps"
    deployment.assert_balanced(producer, [consumer])
