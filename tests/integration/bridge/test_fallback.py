"""Fallback consumers: frames from a bridge, in memory of their own process (wire §15.12)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tensorpool import _native
from tensorpool.client.options import ConsumerOptions
from tensorpool.sbe import ConsumerConfig, ConsumerHello, Mode, ShmPoolAnnounce, decode
from tests.integration.bridge.hosts import DEADLINE_S, Pair, row, settings_of


def start_sender(pair: Pair, source: int, **settings: Any) -> str:
    """Starts a bridge that sends the stream; returns its fallback URI."""
    table = pair.common(mappings=[{"source_stream_id": source, "dest_stream_id": 50_000}], **settings)
    agent = pair.here.bridge(settings_of(instance_id="here", direction="send", **table))
    uri: str = row(agent)["fallback_uri"]
    return uri


class ConfigSender:
    """Sends ConsumerConfig to a consumer, as a supervisor does."""

    def __init__(self, ctx: tp.Context, consumer: tp.Consumer, wait_until: Callable[..., Any]) -> None:
        self._wait_until = wait_until
        self._stream_id = consumer.stream_id
        self._consumer_id = consumer.state().consumer_id or 0
        self._publication = _native.Publication(ctx.connection.conductor, "aeron:ipc", ctx.stream_ids.control)
        wait_until(lambda: self._publication.is_connected, timeout=DEADLINE_S)

    def __call__(self, uri: str, *, use_shm: bool = False) -> None:
        config = ConsumerConfig(
            stream_id=self._stream_id,
            consumer_id=self._consumer_id,
            use_shm=use_shm,
            mode=Mode.STREAM,
            payload_fallback_uri=uri,
        )
        self._wait_until(lambda: self._publication.offer(config.encode()) == "sent", timeout=DEADLINE_S)


def offer_frame(producer: tp.Producer) -> None:
    producer.offer(np.full((50, 100), producer.next_seq % 200, np.uint8))


def is_valid(frame: tp.Frame) -> bool:
    with frame:
        valid = frame.shape == (50, 100) and bool((frame.array == frame.seq % 200).all())
    return valid


@pytest.mark.parametrize("integrity", [False, True])
def test_fallback_consumer_reads_frames_without_a_driver(
    pair: Pair, free_stream_ids: Callable[[], int], wait_until: Callable[..., Any], integrity: bool
):
    source = free_stream_ids()
    uri = start_sender(pair, source, integrity=integrity)
    base = Path(pair.there.context.shm_base_dir)
    with (
        tp.open("standalone", aeron_dir=pair.there.context.aeron_dir, shm_base_dir=base) as ctx,
        ctx.consumer(fallback_uri=uri) as frames,
    ):
        assert (frames.phase, frames.fallback_uri, frames.stream_id) == (tp.Phase.FALLBACK, uri, source)
        announces = _native.Subscription(ctx.connection.conductor, "aeron:ipc", ctx.stream_ids.announce)
        files, epochs = set(base.rglob("*.pool")), []
        for _ in range(2):
            with pair.here.context.producer(source, pools=["64KiB"], nslots=8) as producer:

                def arrived(producer: tp.Producer = producer) -> tp.Frame | None:
                    offer_frame(producer)
                    return next((frame for frame in frames.poll() if frame.epoch == producer.epoch), None)

                frame = wait_until(arrived, timeout=DEADLINE_S)
                assert isinstance(frame, tp.Frame)
                assert is_valid(frame)
                epochs.append(frame.epoch)
        assert len(set(epochs)) == 2, "frames have the epochs of the source"
        assert frames.ledger().balanced
        # A fallback consumer creates no regions and no announces.
        assert set(base.rglob("*.pool")) == files
        messages = [decode(message) for message in announces.poll(256)]
        assert not [
            announce
            for announce in messages
            if isinstance(announce, ShmPoolAnnounce) and announce.stream_id == source
        ]
        announces.close()


def test_consumer_switches_to_fallback_and_back_without_duplicates(
    pair: Pair, free_stream_ids: Callable[[], int], wait_until: Callable[..., Any]
):
    source = free_stream_ids()
    uri, ctx = start_sender(pair, source), pair.here.context
    producer = ctx.producer(source, pools=["64KiB"], nslots=64)
    consumer = ctx.consumer(source)
    wait_until(lambda: consumer.phase is tp.Phase.MAPPED, timeout=DEADLINE_S)
    send_config = ConfigSender(ctx, consumer, wait_until)
    shared, seen = consumer.nslots, []

    def until(condition: Callable[[], bool]) -> None:
        def step() -> bool:
            offer_frame(producer)
            for frame in consumer.poll():
                assert is_valid(frame)
                seen.append((frame.epoch, frame.seq, frame.trace_id))
            return condition()

        wait_until(step, timeout=DEADLINE_S)

    def receive_more() -> None:
        count = len(seen) + 20
        until(lambda: len(seen) >= count)

    kinds: list[str] = []

    def has_happened(kind: str) -> bool:
        kinds.extend(event.kind for event in ctx.events(0.0))
        return kind in kinds

    receive_more()
    for _ in range(2):
        kinds.clear()
        send_config(uri)
        until(lambda: has_happened("fallback_mapped"))
        assert (consumer.phase, consumer.nslots) == (tp.Phase.FALLBACK, shared)
        assert consumer.epoch == producer.epoch
        receive_more()
        send_config("", use_shm=True)
        until(lambda: consumer.phase is tp.Phase.MAPPED)
        receive_more()
    sequences = [seq for epoch, seq, _ in seen if epoch == producer.epoch]
    assert sequences == sorted(set(sequences)), "in order, no frame twice"
    assert len(sequences) == len(seen)
    ledger = consumer.ledger()
    assert ledger.balanced
    assert ledger.received == len(seen)
    assert ledger.span == seen[-1][1] - seen[0][1] + 1


def test_shared_memory_serves_while_the_fallback_has_no_frames(
    pair: Pair, free_stream_ids: Callable[[], int], wait_until: Callable[..., Any]
):
    source = free_stream_ids()
    ctx = pair.here.context
    producer = ctx.producer(source, pools=["64KiB"], nslots=8)
    consumer = ctx.consumer(source)
    wait_until(lambda: consumer.phase is tp.Phase.MAPPED, timeout=DEADLINE_S)
    send_config = ConfigSender(ctx, consumer, wait_until)
    events: list[tp.Event] = []

    def has_failed() -> bool:
        events.extend(ctx.events(0.0))
        return any(event.kind == "fallback_failed" for event in events)

    # The URI is complete, and Aeron refuses its channel.
    uri = (
        "bridge://x?payload=aeron%3Audp%3Fnonsense&payload_stream=1&control=aeron%3Audp%3Fnonsense"
        "&control_stream=2&stream=5"
    )
    send_config(uri)
    wait_until(has_failed, timeout=DEADLINE_S)
    assert (consumer.phase, consumer.fallback_uri) == (tp.Phase.FALLBACK, uri)
    offer_frame(producer)
    assert is_valid(consumer.receive(DEADLINE_S))


def test_fallback_memory_is_limited(
    pair: Pair, free_stream_ids: Callable[[], int], wait_until: Callable[..., Any]
):
    source = free_stream_ids()
    uri = start_sender(pair, source)
    ctx = pair.there.context
    consumer = tp.Consumer(
        ctx.connection,
        source,
        ConsumerOptions(),
        descriptor_channel="aeron:ipc",
        descriptor_stream_id=ctx.stream_ids.descriptor,
        freshness_ns=3 * ctx.connection.announce_period_ns,
        request=ctx.per_consumer_streams.request(ConsumerOptions()),
        fallback_uri=uri,
        fallback_bytes=1 << 20,
    )
    events: list[tp.Event] = []

    def is_refused() -> bool:
        events.extend(ctx.events(0.0))
        return any(
            event.kind == "fallback_failed" and "1048576 are allowed" in event.detail for event in events
        )

    with consumer, pair.here.context.producer(source, pools=["1MiB"], nslots=8):
        wait_until(is_refused, timeout=DEADLINE_S)
        assert consumer.epoch is None


def test_invalid_fallback_uri_is_refused_at_once(pair: Pair):
    ctx = pair.there.context
    with pytest.raises(tp.ConfigError, match="use bridge://"):
        ctx.consumer(fallback_uri="http://x")
    with pytest.raises(tp.ConfigError, match="use bridge://"):
        ctx.consumer(5, fallback_uri="aeron:udp?endpoint=127.0.0.1:1")
    with pytest.raises(tp.ConfigError, match="is missing"):
        ctx.consumer(5, fallback_uri="bridge://x?stream=5")
    with pytest.raises(tp.ConfigError, match="no name or tags"):
        ctx.consumer(name="camera", fallback_uri="bridge://x?stream=5")
    with pytest.raises(tp.ConfigError, match="needs the stream's id"):
        ctx.consumer(name="camera", supports_shm=False)


def test_consumer_reads_shared_memory_first_and_else_its_fallback(
    pair: Pair, free_stream_ids: Callable[[], int], wait_until: Callable[..., Any]
):
    source = free_stream_ids()
    uri, there = start_sender(pair, source), pair.there.context
    with there.consumer(source, fallback_uri=uri) as consumer:
        assert str(consumer.phase) == "unmapped", "there may be shared memory yet"

        def receive_from(producer: tp.Producer) -> None:
            def arrived() -> bool:
                offer_frame(producer)
                return any(is_valid(frame) for frame in consumer.poll() if frame.epoch == producer.epoch)

            wait_until(arrived, timeout=DEADLINE_S)

        with pair.here.context.producer(source, pools=["64KiB"], nslots=8) as producer:
            receive_from(producer)
            assert (consumer.phase, consumer.fallback_uri) == (tp.Phase.FALLBACK, uri)
        with there.producer(source, pools=["64KiB"], nslots=16) as producer:
            wait_until(lambda: consumer.phase is tp.Phase.MAPPED, timeout=DEADLINE_S)
            receive_from(producer)
            assert (consumer.fallback_uri, consumer.nslots) == (None, 16)
        assert consumer.ledger().balanced


def test_consumer_without_shared_memory_sends_hello_and_is_redirected(
    pair: Pair, free_stream_ids: Callable[[], int], wait_until: Callable[..., Any]
):
    source = free_stream_ids()
    uri, there = start_sender(pair, source), pair.there.context
    control = there.connection.subscription(there.stream_ids.control)
    wait_until(lambda: control.is_ready, timeout=DEADLINE_S)
    hellos: list[ConsumerHello] = []

    def has_greeted() -> bool:
        messages = map(decode, control.poll(256))
        hellos.extend(m for m in messages if isinstance(m, ConsumerHello) and m.stream_id == source)
        return bool(hellos)

    with (
        there.producer(source, pools=["64KiB"], nslots=8),
        there.consumer(source, supports_shm=False) as consumer,
        pair.here.context.producer(source, pools=["64KiB"], nslots=8) as producer,
    ):
        wait_until(has_greeted, timeout=DEADLINE_S)
        assert {hello.supports_shm for hello in hellos} == {False}
        assert (consumer.phase, consumer.epoch) == (tp.Phase.UNMAPPED, None), "it maps no regions"
        ConfigSender(there, consumer, wait_until)(uri)

        def arrived() -> bool:
            offer_frame(producer)
            return any(is_valid(frame) for frame in consumer.poll() if frame.epoch == producer.epoch)

        wait_until(arrived, timeout=DEADLINE_S)
        assert (consumer.phase, consumer.fallback_uri) == (tp.Phase.FALLBACK, uri)
    control.close()
