"""What a client gets of its driver, and what it makes of it (driver §2.2, §2.3, §3, §4, §9)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tensorpool import _native
from tensorpool.client import LeaseOptions, Producer, ProducerOptions
from tests.remote import Remote

from .roles import Client

DEADLINE_S = 60.0


def test_the_layout_that_a_producer_asks_for_is_the_stream_s(open_context, free_stream_id) -> None:
    ctx = open_context()
    with ctx.producer(free_stream_id, pools=["256KiB"], nslots=4, name="camera-1", tags=["lab"]) as camera:
        assert camera.offer(np.zeros(256 << 10, np.uint8)).outcome == "published" or camera.next_seq == 1
        assert camera.offer(np.zeros((256 << 10) + 1, np.uint8)).outcome == "no_pool"
    with ctx.service("driver") as driver:
        (stream,) = driver.call("streams")
    assert (stream["name"], stream["tags"], stream["nslots"]) == ("camera-1", ["lab"], 4)


@pytest.mark.requirement("driver-5-1")
def test_a_second_producer_is_refused_with_a_reason_and_a_remedy(
    options, open_context, free_stream_id
) -> None:
    ctx = open_context()
    with Remote(Client) as other, ctx.producer(free_stream_id):
        other.call("open", **options)
        with pytest.raises(Exception, match="has a producer already") as refused:
            other.call("produce", stream_id=free_stream_id)
        assert "tensorpool driver leases" in str(refused.value)


def test_a_layout_that_contradicts_the_stream_s_is_an_attach_error(open_context, free_stream_id) -> None:
    ctx = open_context()
    with ctx.producer(free_stream_id, nslots=4), pytest.raises(tp.AttachError) as refused:
        ctx.producer(free_stream_id, nslots=8)
    assert refused.value.code == "REJECTED"


def test_a_consumer_may_come_first_and_says_what_it_waits_for(open_context, free_stream_id) -> None:
    ctx = open_context()
    consumer = ctx.consumer(free_stream_id)
    with pytest.raises(tp.ReceiveTimeout, match=r"REJECTED: stream .* is not provisioned"):
        consumer.receive(0.1)
    producer = ctx.producer(free_stream_id)
    assert consumer.wait_for_producer(DEADLINE_S)
    producer.offer(np.arange(2))
    assert consumer.receive(DEADLINE_S).shape == (2,)


@pytest.mark.requirement("driver-9-2", "driver-3-2")
def test_regions_that_the_client_s_own_rules_refuse_are_not_used_whoever_gave_them(
    options, open_context, tmp_path: Path, free_stream_id
) -> None:
    """The driver is trusted with what it gives, not with where."""
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
    """The driver's process stopped in its tracks: its clients' contexts say nothing in its place."""
    with Remote(Client) as host, tp.MediaDriver(options["aeron_dir"]):
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


def test_a_producer_that_cannot_use_its_regions_asks_again_with_pauses(
    open_context, tmp_path: Path, free_stream_id, wait_until
) -> None:
    """Each attempt makes a new epoch for everybody: what it gave back itself must not wake it."""
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
            control_stream_id=ctx.stream_ids.control,
        ),
    )
    began = time.monotonic()
    wait_until(lambda: (producer.lease() or {})["refused"] >= 3)
    producer.close()
    # The pauses are half a second at least, and longer after each refusal.
    assert time.monotonic() - began > 1.0
    with host.service("driver") as driver:
        counters = driver.call("status")["counters"]
    assert counters["attaches"] <= 4


def test_files_that_take_longer_to_make_than_an_answer_may_take_are_waited_for(
    open_context, free_stream_id, monkeypatch
) -> None:
    monkeypatch.setenv("TENSORPOOL_CONTEXT__ATTACH_TIMEOUT", "100ms")
    real = _native.create_epoch

    def slow(**words: Any) -> Any:
        time.sleep(2.0)
        return real(**words)

    monkeypatch.setattr(_native, "create_epoch", slow)
    ctx = open_context()
    with ctx.producer(free_stream_id) as producer:
        assert producer.attached
        assert (producer.lease() or {})["granted"] == 1
    with ctx.service("driver") as driver:
        assert driver.call("status")["counters"]["expired"] == 0


def test_the_driver_s_announce_period_is_the_one_that_counts(options, open_context, free_stream_id) -> None:
    open_context("embedded", announce_period=2.0)
    ctx = open_context("driver", announce_period=0.1)
    producer, consumer = ctx.producer(free_stream_id), ctx.consumer(free_stream_id)
    assert consumer.wait_for_producer(DEADLINE_S)
    # Ten of its own periods, in which by its own setting the driver would have been lost three times over.
    lost = [event for event in ctx.events(1.0) if event.kind in ("driver_lost", "unmapped")]
    assert (lost, producer.attached) == ([], True)
