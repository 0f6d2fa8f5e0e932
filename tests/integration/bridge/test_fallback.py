"""A consumer without shared memory: the same frames, in memory of its own process (wire §15.12)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tensorpool import _native
from tensorpool.client import ConsumerOptions
from tensorpool.sbe import ConsumerConfig, Mode, ShmPoolAnnounce, decode
from tests.integration.bridge.hosts import DEADLINE_S, Pair, row, settings_of


def sends(pair: Pair, source: int, **words: Any) -> str:
    """A bridge that sends the stream, and where its frames can be read."""
    table = pair.common(mappings=[{"source_stream_id": source, "dest_stream_id": 50_000}], **words)
    agent = pair.here.bridge(settings_of(instance_id="here", direction="send", **table))
    uri: str = row(agent)["fallback_uri"]
    return uri


class Order:
    """Tells a consumer where its frames come from, as a supervisor would."""

    def __init__(self, ctx: tp.Context, consumer: tp.Consumer, wait_until: Callable[..., Any]) -> None:
        self._wait_until = wait_until
        self._stream_id = consumer.stream_id
        self._who = consumer.standing()["consumer_id"]
        self._voice = _native.Publication(ctx.connection.conductor, "aeron:ipc", ctx.stream_ids.control)
        wait_until(lambda: self._voice.is_connected, timeout=DEADLINE_S)

    def __call__(self, uri: str, *, use_shm: bool = False) -> None:
        config = ConsumerConfig(
            stream_id=self._stream_id,
            consumer_id=self._who,
            use_shm=use_shm,
            mode=Mode.STREAM,
            payload_fallback_uri=uri,
        )
        self._wait_until(lambda: self._voice.offer(config.encode()) == "sent", timeout=DEADLINE_S)


def film(producer: tp.Producer) -> None:
    producer.offer(np.full((50, 100), producer.next_seq % 200, np.uint8))


def is_right(frame: tp.Frame) -> bool:
    with frame:
        right = frame.shape == (50, 100) and bool((frame.array == frame.seq % 200).all())
    return right


@pytest.mark.parametrize("integrity", [False, True])
def test_frames_are_read_off_the_bridge_without_a_driver(
    pair: Pair, free_stream_ids: Callable[[], int], wait_until: Callable[..., Any], integrity: bool
):
    source = free_stream_ids()
    uri = sends(pair, source, integrity=integrity)
    base = Path(pair.there.context.shm_base_dir)
    with (
        tp.open("standalone", aeron_dir=pair.there.context.aeron_dir, shm_base_dir=base) as ctx,
        ctx.consumer(fallback_uri=uri) as frames,
    ):
        assert (frames.phase, frames.fallback_uri, frames.stream_id) == (tp.Phase.FALLBACK, uri, source)
        ear = _native.Subscription(ctx.connection.conductor, "aeron:ipc", ctx.stream_ids.announce)
        files, epochs = set(base.rglob("*.pool")), []
        for _ in range(2):
            with pair.here.context.producer(source, pools=["64KiB"], nslots=8) as producer:

                def arrived(producer: tp.Producer = producer) -> tp.Frame | None:
                    film(producer)
                    return next((one for one in frames.poll() if one.epoch == producer.epoch), None)

                frame = wait_until(arrived, timeout=DEADLINE_S)
                assert isinstance(frame, tp.Frame)
                assert is_right(frame)
                epochs.append(frame.epoch)
        assert len(set(epochs)) == 2, "the source's own epochs"
        assert frames.ledger().balanced
        # Nobody else on this host sees any of it.
        assert set(base.rglob("*.pool")) == files
        heard = [decode(one) for one in ear.poll(256)]
        assert not [one for one in heard if isinstance(one, ShmPoolAnnounce) and one.stream_id == source]
        ear.close()


def test_a_consumer_goes_where_it_is_sent_and_comes_back_and_no_frame_comes_twice(
    pair: Pair, free_stream_ids: Callable[[], int], wait_until: Callable[..., Any]
):
    source = free_stream_ids()
    uri, ctx = sends(pair, source), pair.here.context
    producer = ctx.producer(source, pools=["64KiB"], nslots=64)
    consumer = ctx.consumer(source)
    wait_until(lambda: consumer.phase is tp.Phase.MAPPED, timeout=DEADLINE_S)
    order = Order(ctx, consumer, wait_until)
    shared, seen = consumer.nslots, []

    def until(condition: Callable[[], bool]) -> None:
        def step() -> bool:
            film(producer)
            for frame in consumer.poll():
                assert is_right(frame)
                seen.append((frame.epoch, frame.seq, frame.trace_id))
            return condition()

        wait_until(step, timeout=DEADLINE_S)

    def goes_on() -> None:
        count = len(seen) + 20
        until(lambda: len(seen) >= count)

    kinds: list[str] = []

    def has_happened(kind: str) -> bool:
        kinds.extend(one.kind for one in ctx.events(0.0))
        return kind in kinds

    goes_on()
    for _ in range(2):
        kinds.clear()
        order(uri)
        until(lambda: has_happened("fallback_mapped"))
        assert (consumer.phase, consumer.nslots) == (tp.Phase.FALLBACK, shared)
        assert consumer.epoch == producer.epoch
        goes_on()
        order("", use_shm=True)
        until(lambda: consumer.phase is tp.Phase.MAPPED)
        goes_on()
    sequences = [seq for epoch, seq, _ in seen if epoch == producer.epoch]
    assert sequences == sorted(set(sequences)), "each at most once, in order"
    assert len(sequences) == len(seen)
    ledger = consumer.ledger()
    assert ledger.balanced
    assert ledger.received == len(seen)
    assert ledger.span == seen[-1][1] - seen[0][1] + 1


def test_until_the_other_way_has_frames_and_where_it_has_none_shared_memory_serves(
    pair: Pair, free_stream_ids: Callable[[], int], wait_until: Callable[..., Any]
):
    source = free_stream_ids()
    ctx = pair.here.context
    producer = ctx.producer(source, pools=["64KiB"], nslots=8)
    consumer = ctx.consumer(source)
    wait_until(lambda: consumer.phase is tp.Phase.MAPPED, timeout=DEADLINE_S)
    order = Order(ctx, consumer, wait_until)
    events: list[tp.Event] = []

    def failed(why: str) -> bool:
        events.extend(ctx.events(0.0))
        return any(one.kind == "fallback_failed" and why in one.detail for one in events)

    for uri, why in (
        ("bridge://x?stream=5", "payload, payload_stream, control, control_stream is missing"),
        ("aeron:udp?endpoint=127.0.0.1:1", "use bridge://"),
        (
            "bridge://x?payload=aeron%3Audp%3Fnonsense&payload_stream=1&control=aeron%3Audp%3Fnonsense"
            "&control_stream=2&stream=5",
            "",
        ),
    ):
        events.clear()
        order(uri)
        wait_until(lambda why=why: failed(why), timeout=DEADLINE_S)
        assert (consumer.phase, consumer.fallback_uri) == (tp.Phase.FALLBACK, uri)
        film(producer)
        assert is_right(consumer.receive(DEADLINE_S))


def test_a_source_cannot_make_it_take_more_memory_than_it_may(
    pair: Pair, free_stream_ids: Callable[[], int], wait_until: Callable[..., Any]
):
    source = free_stream_ids()
    uri = sends(pair, source)
    ctx = pair.there.context
    consumer = tp.Consumer(
        ctx.connection.conductor,
        stream_id=source,
        descriptor_channel="aeron:ipc",
        descriptor_stream_id=ctx.stream_ids.descriptor,
        max_outstanding_seq_gap=256,
        freshness_ns=3 * ctx.connection.announce_period_ns,
        hello_period_ns=10**9,
        wanted=ctx.per_consumer_streams.request(ConsumerOptions()),
        idle="backoff",
        latest_only=False,
        fallback_uri=uri,
        fallback_bytes=1 << 20,
    )
    events: list[tp.Event] = []

    def refused() -> bool:
        events.extend(ctx.events(0.0))
        return any(one.kind == "fallback_failed" and "1048576 are allowed" in one.detail for one in events)

    with consumer, pair.here.context.producer(source, pools=["1MiB"], nslots=8):
        wait_until(refused, timeout=DEADLINE_S)
        assert consumer.epoch is None


def test_what_is_no_such_address_is_said_at_once(pair: Pair):
    ctx = pair.there.context
    with pytest.raises(tp.ConfigError, match="use bridge://"):
        ctx.consumer(fallback_uri="http://x")
    with pytest.raises(tp.ConfigError, match="neither an id"):
        ctx.consumer(5, fallback_uri="bridge://x?stream=5")
