"""Floods of attach requests by an untrusted client: others keep their leases, and new clients get theirs."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from tests.integration.supervisor.load import SupervisorProcess
from tests.remote_process import RemoteProcess

from .attach_flood import AttachFlood, SubscriptionFlood
from .deployment import Deployment, Periods

# The lease of the defaults, 3 s.
PERIODS = Periods(keepalive=0.5, grace=6, announce=0.5)
MIB = 1 << 20
FLOOD_S = 10.0
# Notices of about 180 bytes: more than the 1 MiB that Aeron keeps of them by default.
SUBSCRIPTIONS = 8_000
# Below the 3 s after which the media driver takes a paused client to be dead.
PAUSE_S = 1.5


def flooding_process(deployment: Deployment) -> RemoteProcess:
    """A connected sender of requests."""
    remote = deployment.start(AttachFlood, deployment.options)
    deployment.until(lambda: remote.call("is_connected"))
    return remote


@pytest.mark.parametrize(
    ("requests", "streams"), [(60_000, 10_000), (100_000, 1)], ids=["new streams", "one stream"]
)
def test_flood_of_attaches_costs_no_client_its_lease(
    deployment: Deployment, requests: int, streams: int
) -> None:
    deployment.configure(PERIODS, driver='quota = "256MiB"\npools = ["1MiB"]')
    deployment.driver()
    service = deployment.service()
    consumer, producer = deployment.consumer(), deployment.streaming_producer()
    epoch = deployment.wait_epoch(consumer)
    leases = sorted(producer.call("leases") + consumer.call("leases"))
    late_worker, late_reader = deployment.worker(), deployment.worker()
    other = flooding_process(deployment)
    first = deployment.stream_id + 1
    other.send("flood", count=requests, stream_ids=(first, first + streams - 1), seconds=FLOOD_S)
    # In the middle of the flood.
    deployment.until(lambda: deployment.call_driver("status")["counters"]["postponed"] > 1000)
    began = time.monotonic()
    assert late_worker.call("produce", stream_id=first + streams) > 0
    attached_s = time.monotonic() - began
    late_reader.call("consume", stream_id=deployment.stream_id)
    deployment.until(lambda: late_reader.call("poll_all"))
    late_reader.call("close_consumer")
    status = deployment.call_driver("status")
    outcomes = other.receive()
    print(f"\nattached after {attached_s:.2f} s; {outcomes}; {status['counters']['postponed']} postponed")
    assert status["bytes"] <= status["quota"] == 256 * MIB
    assert status["leases"] <= status["max_leases"]
    # What the flood got goes away by itself.
    deployment.until(lambda: deployment.call_driver("status")["leases"] == 3)
    assert sorted(producer.call("leases") + consumer.call("leases")) == leases
    assert deployment.wait_epoch(consumer) == epoch
    late_worker.call("close_producer")
    deployment.assert_balanced(producer, [consumer])
    assert service.end() == 0


def test_driver_ends_in_a_flood_within_the_time_of_its_unit(deployment: Deployment) -> None:
    """systemd kills a driver that takes longer, and its files stay."""
    unit = (Path(__file__).parents[3] / "deploy/tensorpool-driver.service").read_text()
    allowed = re.search(r"^TimeoutStopSec=(\d+)s$", unit, re.MULTILINE)
    assert allowed is not None
    deployment.configure(PERIODS, driver='quota = "256MiB"\npools = ["1MiB"]')
    deployment.driver()
    service, other = deployment.service(), flooding_process(deployment)
    first = deployment.stream_id + 1
    other.send("flood", count=10_000_000, stream_ids=(first, first + 10_000), seconds=FLOOD_S)
    deployment.until(lambda: deployment.call_driver("status")["counters"]["postponed"] > 1000)
    began = time.monotonic()
    assert service.end() == 0
    ended_s = time.monotonic() - began
    print(f"\nended {ended_s:.2f} s after SIGTERM; {other.receive()}")
    assert ended_s < int(allowed[1])
    assert not [path for path in deployment.base.rglob("*") if path.is_file()]


def test_flood_of_subscriptions_costs_a_paused_client_nothing(deployment: Deployment) -> None:
    """Aeron closes a client that the media driver's notices have overtaken."""
    deployment.configure(Periods(keepalive=0.5, grace=120, announce=0.5))
    deployment.driver()
    service = deployment.service()
    consumer, producer = deployment.consumer(), deployment.streaming_producer()
    epoch = deployment.wait_epoch(consumer)
    leases = sorted(producer.call("leases") + consumer.call("leases"))
    other = deployment.start(SubscriptionFlood, deployment.options)
    for _ in range(5):
        consumer.stop()
        added = other.call("flood", count=SUBSCRIPTIONS, seconds=PAUSE_S)
        consumer.resume()
        deployment.wait_received(consumer)
        assert sorted(producer.call("leases") + consumer.call("leases")) == leases
        if added >= SUBSCRIPTIONS:
            break
    assert deployment.wait_epoch(consumer) == epoch
    assert [kind for kind, _ in consumer.call("event_history")].count("media_driver_connected") == 1
    assert service.end() == 0


def test_supervisor_does_not_grow_with_a_flood_of_leases(deployment: Deployment, tmp_path: Path) -> None:
    deployment.configure(PERIODS, driver='pools = ["4KiB"]')
    deployment.driver()
    deployment.service()
    other = flooding_process(deployment)
    with SupervisorProcess(deployment.aeron_dir, deployment.base, tmp_path) as supervisor:
        deployment.until(supervisor.url)
        _, before = supervisor.cost()
        other.call(
            "flood", count=100_000, stream_ids=(deployment.stream_id, deployment.stream_id), seconds=5.0
        )
        deployment.until(lambda: deployment.call_driver("status")["leases"] == 0)
        _, after = supervisor.cost()
        assert supervisor.end() == 0
    assert after - before < 48 * MIB
