"""Keepalives, announces and activity timestamps while a thread holds the GIL for two seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from .deployment import ROUNDS, Deployment, Periods

HOLD_S = 2.0
# Programs at a time; each counts as a round.
PROGRAMS = 5


@pytest.mark.requirement("driver-4.4-2", "driver-4.4-3")
@pytest.mark.parametrize("driver", ["service", "embedded"])
def test_clients_that_hold_the_gil_keep_lease_and_ledger(
    deployment: Deployment, driver: str, free_stream_ids: Callable[[], int]
) -> None:
    """Leases are shorter than that. An embedded driver is delayed too: it reads its messages before it
    expires leases. Its lease is longer, because a driver without a duty cycle for two lease times stops
    announcing."""
    periods = Periods(keepalive=0.2, grace=8 if driver == "service" else 9, announce=0.5)
    assert periods.lease < HOLD_S
    deployment.configure(periods)
    deployment.driver()
    embedders = [] if driver == "service" else [deployment.worker(mode="embedded")]
    if driver == "service":
        deployment.service()
    # Each program consumes the stream of the next.
    programs = [deployment.worker() for _ in range(PROGRAMS)]
    for index, stream_id in enumerate(free_stream_ids() for _ in programs):
        programs[index].call("produce", stream_id=stream_id, nslots=64)
        programs[index].call("offer_always", per_second=100)
        programs[index - 1].call("consume", stream_id=stream_id)
        programs[index - 1].call("receive_always")
    deployment.wait_received(*programs)

    def states() -> list[Any]:
        methods = ("leases", "producer_epoch", "event_history")
        return [[program.call(method) for method in methods] for program in programs]

    before = states()
    for _ in range(max(1, ROUNDS // PROGRAMS)):
        for remote in (*programs, *embedders):
            remote.send("hold_the_interpreter", seconds=HOLD_S)
        for remote in (*programs, *embedders):
            remote.receive()
        deployment.wait_received(*programs)
    assert states() == before
    assert len(deployment.call_driver("leases")) == 2 * PROGRAMS
    assert deployment.call_driver("status")["counters"]["expired"] == 0
    for program in programs:
        program.call("stop_offering")
        written = program.call("producer_ledger")
        assert written["balanced"], written
        assert written["dropped"]["detached"] == 0
    for program in programs:
        assert program.call("stop_receiving")["wrong"] == 0
        ledger = program.call("consumer_ledger")
        assert ledger["balanced"], ledger
