"""Threads that keep the GIL for two seconds: keepalives, announces and signs of life do not need it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from .deployment import ROUNDS, Deployment, Periods

HOLD_S = 2.0
# So many at a time: each is a round of its own.
PROGRAMS = 5


@pytest.mark.requirement("driver-4.4-2", "driver-4.4-3")
@pytest.mark.parametrize("driver", ["service", "embedded"])
def test_programs_that_hold_the_interpreter_lose_neither_lease_nor_account(
    fleet: Deployment, driver: str, free_stream_ids: Callable[[], int]
) -> None:
    """Leases last less than that. An embedded driver is held up too: it reads what has arrived before it
    judges; the lease is longer there, for after two leases' time without a turn it would fall silent."""
    times = Periods(keepalive=0.2, grace=8 if driver == "service" else 9, announce=0.5)
    assert times.lease < HOLD_S
    fleet.configure(times)
    fleet.driver()
    embedders = [] if driver == "service" else [fleet.worker(mode="embedded")]
    if driver == "service":
        fleet.service()
    # Each produces for the next and consumes from the one before.
    programs = [fleet.worker() for _ in range(PROGRAMS)]
    for index, stream_id in enumerate(free_stream_ids() for _ in programs):
        programs[index].call("produce", stream_id=stream_id, nslots=64)
        programs[index].call("offer_always", per_second=100)
        programs[index - 1].call("consume", stream_id=stream_id)
        programs[index - 1].call("receive_always")
    fleet.receives(*programs)

    def known() -> list[Any]:
        return [(one.call("leases"), one.call("producer_epoch"), one.call("story")) for one in programs]

    before = known()
    for _ in range(max(1, ROUNDS // PROGRAMS)):
        for remote in (*programs, *embedders):
            remote.send("hold_the_interpreter", seconds=HOLD_S)
        for remote in (*programs, *embedders):
            remote.receive()
        fleet.receives(*programs)
    assert known() == before, "something happened to somebody"
    assert len(fleet.ask("leases")) == 2 * PROGRAMS
    assert fleet.ask("status")["counters"]["expired"] == 0
    for one in programs:
        one.call("stop_offering")
        written = one.call("producer_ledger")
        assert written["balanced"], written
        assert written["dropped"]["detached"] == 0
    for one in programs:
        assert one.call("stop_receiving")["wrong"] == 0
        ledger = one.call("consumer_ledger")
        assert ledger["balanced"], ledger
