"""Attach requests of producers and consumers, and their refusals (driver §2.2, §2.3, §3, §4, §9)."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tensorpool as tp
from tensorpool import _native
from tensorpool.client import LeaseOptions, Producer, ProducerOptions
from tensorpool.client.lease import lease_status
from tensorpool.sbe.wire import ClockDomain, PayloadPool, ShmPoolAnnounce
from tensorpool.shm import EpochSpec
from tests.remote_process import RemoteProcess

from .roles import Client

DEADLINE_S = 60.0


def test_stream_gets_the_layout_that_its_producer_requests(open_context, free_stream_id) -> None:
    ctx = open_context()
    with ctx.producer(free_stream_id, pools=["256KiB"], nslots=4, name="camera-1", tags=["lab"]) as camera:
        assert camera.offer(np.zeros(256 << 10, np.uint8)).outcome == "published" or camera.next_seq == 1
        with pytest.warns(tp.OfferWarning, match=r'pools=\["512KiB"\]'):
            assert camera.offer(np.zeros((256 << 10) + 1, np.uint8)).outcome == "no_pool"
    with ctx.service("driver") as driver:
        (stream,) = driver.call("streams")
    assert (stream["name"], stream["tags"], stream["nslots"]) == ("camera-1", ["lab"], 4)


@pytest.mark.requirement("driver-5-1")
def test_second_producer_is_refused_with_reason_and_remedy(options, open_context, free_stream_id) -> None:
    ctx = open_context()
    with RemoteProcess(Client) as other, ctx.producer(free_stream_id):
        other.call("open", **options)
        with pytest.raises(Exception, match="has a producer already") as refused:
            other.call("produce", stream_id=free_stream_id)
        assert "tensorpool driver leases" in str(refused.value)


def test_announces_of_another_owner_end_no_lease(open_context, free_stream_id, wait_until) -> None:
    """A producer without a driver uses the same stream id, and its epoch is a later one."""
    ctx = open_context()
    camera, viewer = ctx.producer(free_stream_id, pools=["4KiB"]), ctx.consumer(free_stream_id)
    wait_until(lambda: viewer.epoch == camera.epoch and camera.is_connected)
    epoch = camera.epoch
    other = open_context("standalone", namespace="other", announce_period=0.1)
    with other.producer(free_stream_id, pools=["4KiB"]) as stray:
        assert stray.epoch > epoch
        wait_until(lambda: viewer.counters().announces_ignored["other_owner"] > 2)
        for seq in range(5):
            assert camera.offer(np.arange(4)).outcome == "published"
            assert viewer.receive(DEADLINE_S).seq == seq
    assert (camera.epoch, viewer.epoch) == (epoch, epoch)
    leases = [endpoint.lease() for endpoint in (camera, viewer)]
    assert [(lease.granted, lease.ended) for lease in leases] == [(1, 0), (1, 0)]
    assert viewer.ledger().balanced
    # The driver's own later epoch is believed.
    camera.close()
    successor = ctx.producer(free_stream_id, pools=["4KiB"])
    wait_until(lambda: viewer.epoch == successor.epoch)


def test_announce_of_a_later_epoch_without_regions_ends_no_lease(
    options, open_context, free_stream_id, wait_until
) -> None:
    """Any client can send one for the directory of the driver's streams."""
    ctx = open_context()
    camera, viewer = ctx.producer(free_stream_id, pools=["4KiB"]), ctx.consumer(free_stream_id)
    wait_until(lambda: viewer.epoch == camera.epoch and camera.is_connected)
    epoch = camera.epoch
    (ring,) = Path(options["shm_base_dir"]).rglob(f"{free_stream_id}/{epoch}/header.ring")
    directory = ring.parents[1] / str(epoch + 1)
    announces = ctx.connection.publication(ctx.stream_ids.announce)
    wait_until(lambda: announces.is_connected)

    def has_come() -> bool:
        now_ns = time.monotonic_ns()
        pool_uri = f"shm:file?path={directory}/1.pool"
        announce = ShmPoolAnnounce(
            stream_id=free_stream_id, producer_id=7, epoch=epoch + 1, layout_version=1,
            announce_timestamp_ns=now_ns, announce_clock_domain=ClockDomain.MONOTONIC,
            header_region_uri=f"shm:file?path={directory}/header.ring",
            header_nslots=8, header_slot_bytes=256,
            payload_pools=(
                PayloadPool(pool_id=1, pool_nslots=8, stride_bytes=4096, region_uri=pool_uri),
            ),
        )  # fmt: skip
        announces.offer(announce.encode())
        # Its consumer counts those of an unknown layout, so it has read the others too.
        announces.offer(replace(announce, layout_version=99).encode())
        return bool(viewer.counters().announces_ignored["layout"] > 2)

    wait_until(has_come)
    assert camera.offer(np.arange(4)).outcome == "published"
    assert viewer.receive(DEADLINE_S).seq == 0
    assert (camera.epoch, viewer.epoch, viewer.counters().mapped) == (epoch, epoch, 1)
    leases = [endpoint.lease() for endpoint in (camera, viewer)]
    assert [(lease.granted, lease.ended) for lease in leases] == [(1, 0), (1, 0)]
    announces.close()


def test_layout_that_contradicts_the_stream_is_an_attach_error(open_context, free_stream_id) -> None:
    ctx = open_context()
    with ctx.producer(free_stream_id, nslots=4), pytest.raises(tp.AttachError) as refused:
        ctx.producer(free_stream_id, nslots=8)
    assert refused.value.code == "REJECTED"


def test_consumer_may_open_before_its_stream_is_provisioned(open_context, free_stream_id) -> None:
    ctx = open_context()
    consumer = ctx.consumer(free_stream_id)
    with pytest.raises(tp.ReceiveTimeout, match=r"REJECTED: stream .* is not provisioned"):
        consumer.receive(0.1)
    producer = ctx.producer(free_stream_id)
    assert consumer.wait_for_producer(DEADLINE_S)
    producer.offer(np.arange(2))
    assert consumer.receive(DEADLINE_S).shape == (2,)


@pytest.mark.requirement("driver-9-2", "driver-3-2")
def test_client_rejects_granted_regions_outside_its_allowed_directories(
    options, open_context, tmp_path: Path, free_stream_id
) -> None:
    """A client trusts the driver with the layout of regions, not with their location."""
    open_context("embedded")
    ctx = open_context("driver", allowed_base_dirs=[tmp_path])
    with pytest.raises(tp.AttachError, match="check group membership and allowed_base_dirs") as refused:
        ctx.producer(free_stream_id)
    assert refused.value.code == "REGIONS"
    with open_context("driver").producer(free_stream_id), ctx.consumer(free_stream_id) as consumer:
        with pytest.raises(tp.RegionRejected, match="outside"):
            consumer.receive(DEADLINE_S)
        assert consumer.epoch is None


@pytest.mark.leaves_files
@pytest.mark.requirement("driver-8-1")
def test_only_the_driver_announces(options, open_context, free_stream_id, wait_until) -> None:
    """After the driver's process is killed, the contexts of its clients do not announce in its place."""
    with RemoteProcess(Client) as host, tp.MediaDriver(options["aeron_dir"]):
        assert host.call("open", mode="embedded", media_driver="external", **options)
        ctx = open_context("driver", media_driver="external")
        consumer = ctx.consumer(free_stream_id)
        producer = ctx.producer(free_stream_id)
        assert consumer.wait_for_producer(DEADLINE_S)
        host.kill()
        wait_until(lambda: not producer.attached and consumer.epoch is None)
        assert producer.offer(np.arange(3)).outcome == "detached"
        assert producer.ledger().dropped["detached"] == 1
        with pytest.raises(tp.ClaimRefused, match="no lease at the moment"):
            producer.claim((3,), "int64")


def test_producer_that_rejects_its_regions_retries_with_pauses(
    open_context, tmp_path: Path, free_stream_id, wait_until
) -> None:
    """Each attempt begins a new epoch: a lease that the producer released must not cause the next one."""
    host = open_context("embedded")
    ctx = open_context("driver", allowed_base_dirs=[tmp_path])
    producer = Producer.open(
        ctx.connection,
        free_stream_id,
        ProducerOptions(prefault=False),
        descriptor_channel="aeron:ipc",
        streams=ctx.per_consumer_streams,
        lease=LeaseOptions(
            keepalive_ns=10**9,
            attach_timeout_ns=5 * 10**9,
            retry_ns=10**9,
            revision=1,
            tries_other_revision=False,
            control_stream_id=ctx.stream_ids.control,
        ),
    )
    started = time.monotonic()
    wait_until(lambda: lease_status(producer).refused >= 3)
    producer.close()
    # Pauses take half a second or more, and grow with each refusal.
    assert time.monotonic() - started > 1.0
    with host.service("driver") as driver:
        counters = driver.call("status")["counters"]
    assert counters["attaches"] <= 4


def test_attach_waits_for_an_allocation_longer_than_its_timeout(
    open_context, free_stream_id, monkeypatch
) -> None:
    monkeypatch.setenv("TENSORPOOL_CONTEXT__ATTACH_TIMEOUT", "100ms")
    create_at_once = _native.create_epoch

    def create_slowly(spec: EpochSpec) -> _native.EpochRegions:
        time.sleep(2.0)
        return create_at_once(spec)

    monkeypatch.setattr(_native, "create_epoch", create_slowly)
    ctx = open_context()
    with ctx.producer(free_stream_id) as producer:
        assert producer.attached
        assert lease_status(producer).granted == 1
    with ctx.service("driver") as driver:
        assert driver.call("status")["counters"]["expired"] == 0


def test_announce_period_of_the_driver_replaces_the_setting(options, open_context, free_stream_id) -> None:
    open_context("embedded", announce_period=2.0)
    ctx = open_context("driver", announce_period=0.1)
    producer, consumer = ctx.producer(free_stream_id), ctx.consumer(free_stream_id)
    assert consumer.wait_for_producer(DEADLINE_S)
    # Ten periods of the client's own setting, by which the driver would have been lost three times.
    lost = [event for event in ctx.events(1.0) if event.kind in ("driver_lost", "unmapped")]
    assert (lost, producer.attached) == ([], True)
