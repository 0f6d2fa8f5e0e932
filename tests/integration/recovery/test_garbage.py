"""A client that sends garbage: everybody else goes on as if it were not there."""

from __future__ import annotations

import pytest

from tests.remote_process import RemoteProcess

from .deployment import ROUNDS, STEADY, Deployment, Periods
from .malformed_sender import MalformedSender

COUNT = 2000


def vandal(fleet: Deployment) -> RemoteProcess:
    remote = fleet.start(MalformedSender, fleet.options)
    fleet.until(lambda: remote.call("is_heard"))
    return remote


@pytest.mark.requirement("driver-4.6-1", "driver-4.9-2", "driver-4.12-1")
def test_garbage_costs_nobody_anything(fleet: Deployment) -> None:
    fleet.configure(STEADY)
    fleet.driver()
    service = fleet.service()
    consumer, producer, other = fleet.consumer(), fleet.streaming(), vandal(fleet)
    epoch = fleet.flow(consumer)
    held = sorted(producer.call("leases") + consumer.call("leases"))
    for turn in range(ROUNDS):
        for kind in ("noise", "damaged", "nonsense"):
            other.call("send", kind=kind, seed=turn, count=COUNT, stream_id=fleet.stream_id)
        fleet.receives(consumer)
    assert fleet.settled(producer, [consumer]) == epoch
    assert sorted(producer.call("leases") + consumer.call("leases")) == held
    counters = fleet.ask("status")["counters"]
    assert counters["strays"] > 0
    assert counters["rejects"]["rejected"] > 0
    assert counters["rejects"]["invalid_params"] > 0
    assert service.alive
    fleet.accounts(producer, [consumer])


def test_leases_that_nobody_keeps_alive_and_streams_that_nobody_uses_are_gone_soon(fleet: Deployment) -> None:
    fleet.configure(
        Periods(), driver='pools = ["4KiB"]\nmax_streams = 50\nrelease_idle = "500ms"\nquota = "4MiB"'
    )
    fleet.driver()
    fleet.service()
    consumer, producer, other = fleet.consumer(), fleet.streaming(), vandal(fleet)
    for turn in range(ROUNDS):
        other.call("send", kind="greedy", seed=turn, count=200, stream_id=fleet.stream_id)
        fleet.until(lambda: fleet.ask("status")["leases"] == 2)
        status = fleet.ask("status")
        assert status["counters"]["expired"] > 20 * (turn + 1)
        assert status["bytes"] <= status["quota"] == 4 << 20
        fleet.flow(consumer)
    fleet.until(lambda: {row["stream_id"] for row in fleet.ask("leases")} == {fleet.stream_id})
    fleet.until(lambda: fleet.ask("status")["counters"]["streams"] == 1)
    pattern, left = "tensorpool-*/default/*", [str(fleet.stream_id)]
    fleet.until(lambda: [path.name for path in fleet.base.glob(pattern)] == left)
    fleet.accounts(producer, [consumer])


def test_a_flood_of_garbage_is_survived_and_over_when_it_is_over(fleet: Deployment) -> None:
    """The stream is everybody's: while one shouts others may not be heard, and so lose leases. What they
    have to get is the next one."""
    fleet.configure(Periods(keepalive=0.2, grace=5, announce=0.5))
    fleet.driver()
    fleet.service()
    consumer, producer, other, late = fleet.consumer(), fleet.streaming(), vandal(fleet), fleet.worker()
    for turn in range(ROUNDS):
        fleet.flow(consumer)
        other.call("flood", seed=turn, stream_id=fleet.stream_id)
        # The driver answers in the middle of it, and a newcomer gets its lease.
        late.call("consume", stream_id=fleet.stream_id)
        late.call("receive_always")
        assert late.call("lease", of="consumer")["refused"] == 0, "the first answer was missed"
        assert fleet.ask("status")["leases"] >= 1
        other.call("stop")
        fleet.receives(consumer, late)
        fleet.agreed(producer, [consumer, late])
        fleet.untorn([consumer, late])
        late.call("stop_receiving")
        late.call("close_consumer")
    fleet.accounts(producer, [consumer])
