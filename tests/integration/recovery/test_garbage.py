"""Malformed and unwanted messages on the control stream: other clients are not affected."""

from __future__ import annotations

import pytest

from tests.remote_process import RemoteProcess

from .deployment import ROUNDS, STEADY, Deployment, Periods
from .malformed_sender import MalformedSender

COUNT = 2000


def malformed_sender(deployment: Deployment) -> RemoteProcess:
    """A connected sender of malformed messages."""
    remote = deployment.start(MalformedSender, deployment.options)
    deployment.until(lambda: remote.call("is_connected"))
    return remote


@pytest.mark.requirement("driver-4.6-1", "driver-4.9-2", "driver-4.12-1")
def test_malformed_messages_affect_no_client(deployment: Deployment) -> None:
    deployment.configure(STEADY)
    deployment.driver()
    service = deployment.service()
    consumer, producer, other = (
        deployment.consumer(),
        deployment.streaming_producer(),
        malformed_sender(deployment),
    )
    epoch = deployment.wait_epoch(consumer)
    leases = sorted(producer.call("leases") + consumer.call("leases"))
    for turn in range(ROUNDS):
        for kind in ("noise", "damaged", "nonsense"):
            other.call("send", kind=kind, seed=turn, count=COUNT, stream_id=deployment.stream_id)
        deployment.wait_received(consumer)
    assert deployment.wait_settled(producer, [consumer]) == epoch
    assert sorted(producer.call("leases") + consumer.call("leases")) == leases
    counters = deployment.call_driver("status")["counters"]
    assert counters["strays"] > 0
    assert counters["rejects"]["rejected"] > 0
    assert counters["rejects"]["invalid_params"] > 0
    assert service.alive
    deployment.assert_balanced(producer, [consumer])


def test_leases_without_keepalives_and_unused_streams_are_removed(
    deployment: Deployment,
) -> None:
    deployment.configure(
        Periods(), driver='pools = ["4KiB"]\nmax_streams = 50\nrelease_idle = "500ms"\nquota = "4MiB"'
    )
    deployment.driver()
    deployment.service()
    consumer, producer, other = (
        deployment.consumer(),
        deployment.streaming_producer(),
        malformed_sender(deployment),
    )
    for turn in range(ROUNDS):
        other.call("send", kind="greedy", seed=turn, count=200, stream_id=deployment.stream_id)
        deployment.until(lambda: deployment.call_driver("status")["leases"] == 2)
        status = deployment.call_driver("status")
        assert status["counters"]["expired"] > 20 * (turn + 1)
        assert status["bytes"] <= status["quota"] == 4 << 20
        deployment.wait_epoch(consumer)
    deployment.until(
        lambda: {row["stream_id"] for row in deployment.call_driver("leases")} == {deployment.stream_id}
    )
    deployment.until(lambda: deployment.call_driver("status")["counters"]["streams"] == 1)
    pattern, expected = "tensorpool-*/default/*", [str(deployment.stream_id)]
    deployment.until(lambda: [path.name for path in deployment.base.glob(pattern)] == expected)
    deployment.assert_balanced(producer, [consumer])


def test_clients_recover_after_a_flood_of_noise(deployment: Deployment) -> None:
    """All clients share the control stream: during the flood their keepalives may be delayed and leases may
    expire. Each client then has to get a new lease."""
    deployment.configure(Periods(keepalive=0.2, grace=5, announce=0.5))
    deployment.driver()
    deployment.service()
    consumer, producer, other, late = (
        deployment.consumer(),
        deployment.streaming_producer(),
        malformed_sender(deployment),
        deployment.worker(),
    )
    for turn in range(ROUNDS):
        deployment.wait_epoch(consumer)
        other.call("flood", seed=turn, stream_id=deployment.stream_id)
        # The driver responds during the flood, and a new client gets its lease.
        late.call("consume", stream_id=deployment.stream_id)
        late.call("receive_always")
        assert late.call("lease", of="consumer")["refused"] == 0, "the first response was missed"
        assert deployment.call_driver("status")["leases"] >= 1
        other.call("stop")
        deployment.wait_received(consumer, late)
        deployment.wait_agreed(producer, [consumer, late])
        deployment.assert_untorn([consumer, late])
        late.call("stop_receiving")
        late.call("close_consumer")
    deployment.assert_balanced(producer, [consumer])
