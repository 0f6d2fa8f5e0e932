"""Threads that keep the GIL for two seconds: keepalives, announces and signs of life do not need it."""

from __future__ import annotations

import pytest

from .fleet import ROUNDS, Fleet, Times

HOLD_S = 2.0


@pytest.mark.requirement("driver-4.4-2", "driver-4.4-3")
@pytest.mark.parametrize("driver", ["service", "embedded"])
def test_programs_that_hold_the_interpreter_lose_neither_lease_nor_account(fleet: Fleet, driver: str) -> None:
    """Leases last less than that. An embedded driver is held up too: it reads what has arrived before it
    judges; the lease is longer there, for after two leases' time without a turn it would fall silent."""
    times = Times(keepalive=0.2, grace=3 if driver == "service" else 6, announce=0.2)
    assert times.lease < HOLD_S
    fleet.configure(times)
    fleet.driver()
    if driver == "service":
        fleet.service()
        holders = []
    else:
        holders = [fleet.worker(mode="embedded")]
    consumer, producer = fleet.consumer(), fleet.streaming()
    epoch = fleet.flow(consumer)
    members = [producer, consumer]
    leases = [member.call("leases") for member in members]
    stories = [member.call("story") for member in members]
    for _ in range(ROUNDS if driver == "service" else max(1, ROUNDS // 5)):
        for remote in (*members, *holders):
            remote.tell("hold_the_interpreter", seconds=HOLD_S)
        for remote in (*members, *holders):
            remote.answer()
        fleet.receives(consumer)
        assert [member.call("leases") for member in members] == leases
    assert fleet.settled(producer, [consumer]) == epoch
    assert [member.call("story") for member in members] == stories, "nothing happened to anybody"
    assert fleet.ask("status")["counters"]["expired"] == 0
    fleet.accounts(producer, [consumer])
