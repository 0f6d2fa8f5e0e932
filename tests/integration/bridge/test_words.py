"""What travels beside the frames: metadata, QoS, progress, announces; and what does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tensorpool import _native, sbe
from tensorpool.sbe import FrameProgress, FrameProgressState, QosProducer, ShmPoolAnnounce
from tests.integration.bridge.hosts import DEADLINE_S, Host, Pair, flows


class Ear:
    """Everything that is said on a stream, decoded."""

    def __init__(self, host: Host, stream_id: int, channel: str = "aeron:ipc?tether=false") -> None:
        self._subscription = _native.Subscription(host.context.connection.conductor, channel, stream_id)
        self.heard: list[Any] = []
        self.raw: list[bytes] = []

    def listen(self) -> list[Any]:
        for message in self._subscription.poll(1024):
            self.raw.append(message)
            self.heard.append(sbe.decode(message))
        return self.heard

    def of(self, kind: type[Any], **fields: Any) -> list[Any]:
        return [
            one
            for one in self.listen()
            if isinstance(one, kind) and all(getattr(one, name) == value for name, value in fields.items())
        ]


@pytest.mark.requirement("bridge-7.1-1", "bridge-7.1-2", "bridge-7.1-3")
def test_metadata_crosses_and_keeps_its_version(
    pair: Pair, free_stream_ids: Callable[[], int], wait_until: Callable[..., Any]
):
    source, dest = free_stream_ids(), free_stream_ids()
    producer = pair.here.context.producer(source, pools=["4KiB"], name="left eye", metadata={"serial": "A1"})
    ends = pair.connect(source, dest)
    ear = Ear(pair.there, pair.there.context.stream_ids.metadata)
    consumer = pair.there.context.consumer(dest)
    metadata = wait_until(lambda: consumer.metadata, timeout=DEADLINE_S)
    assert metadata["serial"] == "A1"
    wait_until(lambda: consumer.source_name == "left eye", timeout=DEADLINE_S)
    producer.set_metadata({"serial": "B2"})
    wait_until(lambda: (consumer.metadata or {}).get("serial") == "B2", timeout=DEADLINE_S)
    wait_until(lambda: flows(*ends, producer, consumer), timeout=DEADLINE_S)
    producer.offer(np.zeros(10, np.uint8))
    frame = consumer.receive(DEADLINE_S)
    assert frame.meta_version == producer.meta_version
    assert frame.meta is not None
    assert frame.meta["serial"] == "B2"
    versions = {one.meta_version for one in ear.of(sbe.DataSourceMeta, stream_id=dest)}
    assert producer.meta_version in versions
    assert ear.of(sbe.DataSourceMeta, stream_id=source) == []


@pytest.mark.requirement("bridge-7.1-3")
def test_metadata_can_carry_another_stream_id(
    pair: Pair, free_stream_ids: Callable[[], int], wait_until: Callable[..., Any]
):
    source, dest, told = free_stream_ids(), free_stream_ids(), free_stream_ids()
    ear = Ear(pair.there, pair.there.context.stream_ids.metadata)
    producer = pair.here.context.producer(source, pools=["4KiB"], name="left eye")
    pair.connect(source, dest, mapping={"metadata_stream_id": told})
    assert producer.attached
    wait_until(lambda: ear.of(sbe.DataSourceAnnounce, stream_id=told), timeout=DEADLINE_S)
    assert ear.of(sbe.DataSourceAnnounce, stream_id=dest) == []


@pytest.mark.requirement("bridge-9-1", "bridge-7.2-3")
def test_qos_crosses_by_the_mappings_control_streams(
    pair: Pair, free_stream_ids: Callable[[], int], wait_until: Callable[..., Any]
):
    source, dest, control = free_stream_ids(), free_stream_ids(), free_stream_ids()
    ear = Ear(pair.there, control)
    producer = pair.here.context.producer(source, pools=["4KiB"])
    ids = {
        "source_control_stream_id": pair.here.context.stream_ids.control,
        "dest_control_stream_id": control,
    }
    pair.connect(source, dest, mapping=ids, forward_qos=True)
    producer.offer(np.zeros(10, np.uint8))
    said = wait_until(lambda: ear.of(QosProducer, stream_id=dest, current_seq=0), timeout=DEADLINE_S)
    assert said[0].epoch == producer.epoch
    assert ear.of(QosProducer, stream_id=source) == []


@pytest.mark.requirement(
    "bridge-9-2", "bridge-9-3", "bridge-9-4", "bridge-9-5", "bridge-9-10", "bridge-7.2-3"
)
def test_progress_is_told_again_once_its_bytes_are_here(
    pair: Pair, free_stream_ids: Callable[[], int], wait_until: Callable[..., Any]
):
    source, dest = free_stream_ids(), free_stream_ids()
    control_here, control_there = (host.context.stream_ids.control for host in (pair.here, pair.there))
    ids = {"source_control_stream_id": control_here, "dest_control_stream_id": control_there}
    ear, wire = Ear(pair.there, control_there), Ear(pair.here, control_here)
    producer = pair.here.context.producer(source, pools=["64KiB"])
    ends = pair.connect(source, dest, mapping=ids, forward_progress=True)
    consumer = pair.there.context.consumer(dest)
    wait_until(lambda: flows(*ends, producer, consumer), timeout=DEADLINE_S)
    wait_until(lambda: producer.has_listeners, timeout=DEADLINE_S)
    with producer.claim((64, 512), "uint8", progress="rows") as slot:
        for number in range(64):
            slot.array[number] = number
            slot.advance()
        wait_until(lambda: wire.of(FrameProgress, stream_id=source), timeout=DEADLINE_S)
        assert ear.of(FrameProgress, stream_id=dest) == [], "no byte of it is here yet"
        assert consumer.poll() == []
    done = wait_until(
        lambda: ear.of(FrameProgress, stream_id=dest, state=FrameProgressState.COMPLETE), timeout=DEADLINE_S
    )
    frame = consumer.receive(DEADLINE_S)
    assert (done[0].seq, done[0].payload_bytes_filled, done[0].epoch) == (frame.seq, 64 * 512, frame.epoch)
    assert ear.of(FrameProgress, stream_id=source) == []
    here = wire.of(FrameProgress, stream_id=source, state=FrameProgressState.COMPLETE)
    assert (here[0].seq, here[0].payload_bytes_filled) == (done[0].seq, done[0].payload_bytes_filled)


@pytest.mark.requirement("bridge-9-6")
def test_progress_of_a_stream_that_is_not_mapped_stays_where_it_is(
    pair: Pair, free_stream_ids: Callable[[], int], wait_until: Callable[..., Any]
):
    source, dest, other = free_stream_ids(), free_stream_ids(), free_stream_ids()
    control = pair.here.context.stream_ids.control
    ids = {"source_control_stream_id": control, "dest_control_stream_id": control}
    ear = Ear(pair.there, control)
    producer = pair.here.context.producer(source, pools=["4KiB"])
    sender, receiver = pair.connect(source, dest, mapping=ids, forward_progress=True)
    wait_until(lambda: flows(sender, receiver, producer), timeout=DEADLINE_S)
    voice = _native.Publication(pair.here.context.connection.conductor, "aeron:ipc", control)
    wait_until(lambda: voice.is_connected, timeout=DEADLINE_S)
    epoch = producer.epoch
    assert epoch is not None
    for stream_id in (other, source):
        word = FrameProgress(
            stream_id=stream_id, epoch=epoch, seq=0, payload_bytes_filled=0, state=FrameProgressState.STARTED
        )
        wait_until(lambda word=word: voice.offer(word.encode()) == "sent", timeout=DEADLINE_S)
    wait_until(lambda: sender.counters.forwarded["progress"].value == 1, timeout=DEADLINE_S)
    producer.offer(np.zeros(100, np.uint8))
    wait_until(lambda: ear.of(FrameProgress), timeout=DEADLINE_S)
    assert [one.stream_id for one in ear.of(FrameProgress)] == [dest]


@pytest.mark.requirement("bridge-7-2", "bridge-7.2-1", "bridge-7.2-2", "bridge-2.3-2")
def test_only_chunks_are_on_the_payload_stream_and_announces_stay_off_the_local_one(
    pair: Pair, free_stream_ids: Callable[[], int], wait_until: Callable[..., Any]
):
    source, dest = free_stream_ids(), free_stream_ids()
    payload, control = (pair.common()[f"{name}_channel"] for name in ("payload", "control"))
    on_payload, on_control = Ear(pair.there, 3000, payload), Ear(pair.there, 3001, control)
    local = Ear(pair.there, pair.there.context.stream_ids.announce)
    producer = pair.here.context.producer(source, pools=["4KiB"])
    ends = pair.connect(source, dest)
    consumer = pair.there.context.consumer(dest)
    wait_until(lambda: flows(*ends, producer, consumer), timeout=DEADLINE_S)
    wait_until(lambda: on_control.of(ShmPoolAnnounce, stream_id=source), timeout=DEADLINE_S)
    producer.offer(np.zeros(4000, np.uint8))
    consumer.receive(DEADLINE_S)
    wait_until(lambda: len(on_payload.listen()) == 4, timeout=DEADLINE_S)
    assert {type(one) for one in on_payload.heard} == {sbe.BridgeFrameChunk}
    assert {one.stream_id for one in on_payload.heard} == {source}
    assert local.of(ShmPoolAnnounce, stream_id=dest)
    assert local.of(ShmPoolAnnounce, stream_id=source) == []
