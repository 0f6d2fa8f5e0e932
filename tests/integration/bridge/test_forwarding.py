"""Forwarded messages: metadata, QoS, progress and announces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tensorpool import Consumer, Producer, _native, sbe
from tensorpool.sbe import FrameProgress, FrameProgressState, QosProducer, ShmPoolAnnounce
from tensorpool.sbe.trace import TraceLinkSet
from tensorpool.transport import StreamAddress
from tests.integration.bridge.hosts import DEADLINE_S, Host, Pair, flows, row


class MessageCollector:
    """All messages of an Aeron stream, decoded."""

    def __init__(self, host: Host, stream_id: int, channel: str = "aeron:ipc?tether=false") -> None:
        self._subscription = _native.Subscription(host.context.connection.conductor, channel, stream_id)
        self.decoded: list[Any] = []
        self.raw: list[bytes] = []

    def poll(self) -> list[Any]:
        for message in self._subscription.poll(1024):
            self.raw.append(message)
            self.decoded.append(sbe.decode(message))
        return self.decoded

    def raw_of(self, kind: type[Any]) -> list[bytes]:
        self.poll()
        return [raw for raw, message in zip(self.raw, self.decoded, strict=True) if isinstance(message, kind)]

    def of_type(self, kind: type[Any], **fields: Any) -> list[Any]:
        return [
            message
            for message in self.poll()
            if isinstance(message, kind)
            and all(getattr(message, name) == value for name, value in fields.items())
        ]


@pytest.mark.requirement("bridge-7.1-1", "bridge-7.1-2", "bridge-7.1-3")
def test_metadata_crosses_and_keeps_its_version(
    pair: Pair, free_stream_ids: Callable[[], int], wait_until: Callable[..., Any]
):
    source, dest = free_stream_ids(), free_stream_ids()
    producer = pair.here.context.producer(source, pools=["4KiB"], name="left eye", metadata={"serial": "A1"})
    ends = pair.connect(source, dest)
    messages = MessageCollector(pair.there, pair.there.context.stream_ids.metadata)
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
    versions = {meta.meta_version for meta in messages.of_type(sbe.DataSourceMeta, stream_id=dest)}
    assert producer.meta_version in versions
    assert messages.of_type(sbe.DataSourceMeta, stream_id=source) == []


@pytest.mark.requirement("bridge-7.1-3")
def test_metadata_can_carry_another_stream_id(
    pair: Pair, free_stream_ids: Callable[[], int], wait_until: Callable[..., Any]
):
    source, dest, metadata_stream = free_stream_ids(), free_stream_ids(), free_stream_ids()
    messages = MessageCollector(pair.there, pair.there.context.stream_ids.metadata)
    producer = pair.here.context.producer(source, pools=["4KiB"], name="left eye")
    pair.connect(source, dest, mapping={"metadata_stream_id": metadata_stream})
    assert producer.attached
    wait_until(
        lambda: messages.of_type(sbe.DataSourceAnnounce, stream_id=metadata_stream), timeout=DEADLINE_S
    )
    assert messages.of_type(sbe.DataSourceAnnounce, stream_id=dest) == []


@pytest.mark.requirement("bridge-9-1", "bridge-7.2-3")
def test_qos_crosses_by_the_mappings_control_streams(
    pair: Pair, free_stream_ids: Callable[[], int], wait_until: Callable[..., Any]
):
    source, dest, control = free_stream_ids(), free_stream_ids(), free_stream_ids()
    messages = MessageCollector(pair.there, control)
    producer = pair.here.context.producer(source, pools=["4KiB"])
    ids = {
        "source_control_stream_id": pair.here.context.stream_ids.control,
        "dest_control_stream_id": control,
    }
    pair.connect(source, dest, mapping=ids, forward_qos=True)
    producer.offer(np.zeros(10, np.uint8))
    reports = wait_until(
        lambda: messages.of_type(QosProducer, stream_id=dest, current_seq=0), timeout=DEADLINE_S
    )
    assert reports[0].epoch == producer.epoch
    assert messages.of_type(QosProducer, stream_id=source) == []


@pytest.mark.requirement("bridge-9-3", "bridge-9-4")
def test_progress_changes_its_stream_id_on_arrival_only(
    pair: Pair, free_stream_ids: Callable[[], int], wait_until: Callable[..., Any]
):
    source, dest = free_stream_ids(), free_stream_ids()
    control_here, control_there = (host.context.stream_ids.control for host in (pair.here, pair.there))
    ids = {"source_control_stream_id": control_here, "dest_control_stream_id": control_there}
    at_source = MessageCollector(pair.here, control_here)
    # A second subscription to the control channel of the bridge: what is on the way.
    on_the_way = MessageCollector(pair.there, 3001, pair.common()["control_channel"])
    at_destination = MessageCollector(pair.there, control_there)
    producer = pair.here.context.producer(source, pools=["64KiB"])
    ends = pair.connect(source, dest, mapping=ids, forward_progress=True)
    consumer = pair.there.context.consumer(dest)
    wait_until(lambda: flows(*ends, producer, consumer), timeout=DEADLINE_S)
    wait_until(lambda: producer.has_progress_consumers, timeout=DEADLINE_S)
    wait_until(lambda: on_the_way.of_type(ShmPoolAnnounce), timeout=DEADLINE_S)
    with producer.claim((64, 512), "uint8", progress="rows") as slot:
        for number in range(64):
            slot.array[number] = number
            slot.advance()
    complete = {"state": FrameProgressState.COMPLETE}
    wait_until(lambda: at_destination.of_type(FrameProgress, **complete), timeout=DEADLINE_S)
    wait_until(lambda: on_the_way.of_type(FrameProgress, **complete), timeout=DEADLINE_S)
    wait_until(lambda: at_source.of_type(FrameProgress, **complete), timeout=DEADLINE_S)
    # On the way: the message of the source, byte by byte.
    sent, carried = (messages.raw_of(FrameProgress) for messages in (at_source, on_the_way))
    assert carried
    assert set(carried) <= set(sent)
    assert {progress.stream_id for progress in on_the_way.of_type(FrameProgress)} == {source}
    # On arrival: the destination's stream id and, by decision 30, its epoch. Nothing else is changed.
    arrived = at_destination.of_type(FrameProgress)
    assert {(progress.stream_id, progress.epoch) for progress in arrived} == {(dest, consumer.epoch)}
    originals = {
        (progress.seq, progress.payload_bytes_filled, progress.state)
        for progress in at_source.of_type(FrameProgress)
    }
    assert {(p.seq, p.payload_bytes_filled, p.state) for p in arrived} <= originals


@pytest.mark.requirement("bridge-9-2", "bridge-9-5", "bridge-9-10", "bridge-7.2-3")
def test_progress_is_forwarded_after_its_bytes_arrive(
    pair: Pair, free_stream_ids: Callable[[], int], wait_until: Callable[..., Any]
):
    source, dest = free_stream_ids(), free_stream_ids()
    control_here, control_there = (host.context.stream_ids.control for host in (pair.here, pair.there))
    ids = {"source_control_stream_id": control_here, "dest_control_stream_id": control_there}
    messages, source_messages = (
        MessageCollector(pair.there, control_there),
        MessageCollector(pair.here, control_here),
    )
    producer = pair.here.context.producer(source, pools=["64KiB"])
    ends = pair.connect(source, dest, mapping=ids, forward_progress=True)
    consumer = pair.there.context.consumer(dest)
    wait_until(lambda: flows(*ends, producer, consumer), timeout=DEADLINE_S)
    wait_until(lambda: producer.has_progress_consumers, timeout=DEADLINE_S)
    with producer.claim((64, 512), "uint8", progress="rows") as slot:
        for number in range(64):
            slot.array[number] = number
            slot.advance()
        wait_until(lambda: source_messages.of_type(FrameProgress, stream_id=source), timeout=DEADLINE_S)
        assert messages.of_type(FrameProgress, stream_id=dest) == [], "no byte of the frame is here yet"
        assert consumer.poll() == []
    done = wait_until(
        lambda: messages.of_type(FrameProgress, stream_id=dest, state=FrameProgressState.COMPLETE),
        timeout=DEADLINE_S,
    )
    frame = consumer.receive(DEADLINE_S)
    assert (done[0].seq, done[0].payload_bytes_filled, done[0].epoch) == (frame.seq, 64 * 512, frame.epoch)
    assert messages.of_type(FrameProgress, stream_id=source) == []
    here = source_messages.of_type(FrameProgress, stream_id=source, state=FrameProgressState.COMPLETE)
    assert (here[0].seq, here[0].payload_bytes_filled) == (done[0].seq, done[0].payload_bytes_filled)


@pytest.mark.requirement("bridge-9-6")
def test_progress_of_unmapped_streams_is_not_forwarded(
    pair: Pair, free_stream_ids: Callable[[], int], wait_until: Callable[..., Any]
):
    source, dest, other = free_stream_ids(), free_stream_ids(), free_stream_ids()
    control = pair.here.context.stream_ids.control
    ids = {"source_control_stream_id": control, "dest_control_stream_id": control}
    messages = MessageCollector(pair.there, control)
    producer = pair.here.context.producer(source, pools=["4KiB"])
    sender, receiver = pair.connect(source, dest, mapping=ids, forward_progress=True)
    wait_until(lambda: flows(sender, receiver, producer), timeout=DEADLINE_S)
    publication = _native.Publication(pair.here.context.connection.conductor, "aeron:ipc", control)
    wait_until(lambda: publication.is_connected, timeout=DEADLINE_S)
    epoch = producer.epoch
    assert epoch is not None
    for stream_id in (other, source):
        progress = FrameProgress(
            stream_id=stream_id, epoch=epoch, seq=0, payload_bytes_filled=0, state=FrameProgressState.STARTED
        )
        wait_until(
            lambda progress=progress: publication.offer(progress.encode()) == "sent", timeout=DEADLINE_S
        )
    wait_until(lambda: sender.counters.forwarded["progress"].value == 1, timeout=DEADLINE_S)
    producer.offer(np.zeros(100, np.uint8))
    wait_until(lambda: messages.of_type(FrameProgress), timeout=DEADLINE_S)
    assert [progress.stream_id for progress in messages.of_type(FrameProgress)] == [dest]


@pytest.mark.requirement("bridge-9-6")
def test_receiver_drops_progress_that_belongs_to_no_mapping(
    pair: Pair, free_stream_ids: Callable[[], int], wait_until: Callable[..., Any]
):
    source, dest, other = free_stream_ids(), free_stream_ids(), free_stream_ids()
    control = pair.here.context.stream_ids.control
    ids = {"source_control_stream_id": control, "dest_control_stream_id": control}
    messages = MessageCollector(pair.there, control)
    producer = pair.here.context.producer(source, pools=["4KiB"])
    sender, receiver = pair.connect(source, dest, mapping=ids, forward_progress=True)
    wait_until(lambda: flows(sender, receiver, producer), timeout=DEADLINE_S)
    # Another sender on the control channel: its progress reaches the receiver, whatever stream it names.
    wire = pair.here.context.connection.publication(StreamAddress(pair.common()["control_channel"], 3001))
    wait_until(lambda: wire.is_connected, timeout=DEADLINE_S)
    epoch = producer.epoch
    assert epoch is not None
    for stream_id in (other, dest, source):
        progress = FrameProgress(
            stream_id=stream_id, epoch=epoch, seq=0, payload_bytes_filled=0, state=FrameProgressState.STARTED
        )
        wait_until(lambda progress=progress: wire.offer(progress.encode()) == "sent", timeout=DEADLINE_S)
    producer.offer(np.zeros(100, np.uint8))
    # The last one, of the mapped stream, is republished once: those before it were dropped.
    wait_until(lambda: messages.of_type(FrameProgress), timeout=DEADLINE_S)
    wait_until(lambda: row(receiver)["progress_sent"] == 1, timeout=DEADLINE_S)
    assert [progress.stream_id for progress in messages.of_type(FrameProgress)] == [dest]


@pytest.mark.requirement("bridge-7-2", "bridge-7.2-1", "bridge-7.2-2", "bridge-2.3-2")
def test_payload_stream_has_only_chunks(
    pair: Pair, free_stream_ids: Callable[[], int], wait_until: Callable[..., Any]
):
    source, dest = free_stream_ids(), free_stream_ids()
    payload, control = (pair.common()[f"{name}_channel"] for name in ("payload", "control"))
    on_payload, on_control = (
        MessageCollector(pair.there, 3000, payload),
        MessageCollector(pair.there, 3001, control),
    )
    local = MessageCollector(pair.there, pair.there.context.stream_ids.announce)
    producer = pair.here.context.producer(source, pools=["4KiB"])
    ends = pair.connect(source, dest)
    consumer = pair.there.context.consumer(dest)
    wait_until(lambda: flows(*ends, producer, consumer), timeout=DEADLINE_S)
    wait_until(lambda: on_control.of_type(ShmPoolAnnounce, stream_id=source), timeout=DEADLINE_S)
    producer.offer(np.zeros(4000, np.uint8))
    consumer.receive(DEADLINE_S)
    wait_until(lambda: len(on_payload.poll()) == 4, timeout=DEADLINE_S)
    assert {type(chunk) for chunk in on_payload.decoded} == {sbe.BridgeFrameChunkR2}
    assert {chunk.stream_id for chunk in on_payload.decoded} == {source}
    assert local.of_type(ShmPoolAnnounce, stream_id=dest)
    assert local.of_type(ShmPoolAnnounce, stream_id=source) == []


def links_that_cross(
    producer: Producer,
    consumer: Consumer,
    control: MessageCollector,
    parents: list[int],
    wait_until: Callable[..., Any],
) -> tuple[TraceLinkSet, _native.Frame]:
    """A TraceLinkSet of the consumer's stream, and its frame. A producer sends links best effort: it repeats
    frames with parents until one has crossed."""
    frames: dict[int, _native.Frame] = {}

    def crossed() -> list[TraceLinkSet]:
        producer.offer(np.zeros(10, np.uint8), parents=parents)
        frames.update({frame.seq: frame for frame in consumer.poll()})
        links = control.of_type(TraceLinkSet, stream_id=consumer.stream_id)
        return [each for each in links if each.seq in frames]

    links = wait_until(crossed, timeout=DEADLINE_S)[-1]
    return links, frames[links.seq]


@pytest.mark.parametrize("integrity", [False, True])
def test_traces_and_their_links_cross(
    pair: Pair, free_stream_ids: Callable[[], int], wait_until: Callable[..., Any], integrity: bool
):
    source, dest = free_stream_ids(), free_stream_ids()
    control = MessageCollector(pair.there, pair.there.context.stream_ids.control)
    producer = pair.here.context.producer(source, pools=["64KiB"], traces=True)
    ends = pair.connect(source, dest, integrity=integrity)
    consumer = pair.there.context.consumer(dest)
    wait_until(lambda: flows(*ends, producer, consumer), timeout=DEADLINE_S)
    # Of several chunks, and without parents.
    producer.offer(np.arange(20_000, dtype=np.uint8))
    root = consumer.receive(DEADLINE_S)
    assert root.trace_id
    links, frame = links_that_cross(producer, consumer, control, [root.trace_id, 77], wait_until)
    assert (links.epoch, links.trace_id) == (frame.epoch, frame.trace_id)
    assert [parent.trace_id for parent in links.parents] == [root.trace_id, 77]
    assert control.of_type(TraceLinkSet, stream_id=source) == []


def test_links_of_a_producer_with_a_dedicated_control_stream_cross(
    pair: Pair, free_stream_ids: Callable[[], int], wait_until: Callable[..., Any]
):
    """The mapping names the control stream at the source; the links go to that of the destination."""
    source, dest = free_stream_ids(), free_stream_ids()
    control = MessageCollector(pair.there, pair.there.context.stream_ids.control)
    producer = pair.here.context.producer(source, pools=["64KiB"], traces=True, control_stream_id=6100)
    ends = pair.connect(source, dest, mapping={"source_control_stream_id": 6100})
    consumer = pair.there.context.consumer(dest)
    wait_until(lambda: flows(*ends, producer, consumer), timeout=DEADLINE_S)
    links, frame = links_that_cross(producer, consumer, control, [76, 77], wait_until)
    assert (links.epoch, links.trace_id) == (frame.epoch, frame.trace_id)
    assert [parent.trace_id for parent in links.parents] == [76, 77]


def test_traces_stay_behind_where_a_receiver_knows_the_first_chunks_only(
    pair: Pair, free_stream_ids: Callable[[], int], wait_until: Callable[..., Any]
):
    source, dest = free_stream_ids(), free_stream_ids()
    producer = pair.here.context.producer(source, pools=["64KiB"], traces=True)
    ends = pair.connect(source, dest, forward_traces=False, integrity=False)
    consumer = pair.there.context.consumer(dest)
    wait_until(lambda: flows(*ends, producer, consumer), timeout=DEADLINE_S)
    producer.offer(np.zeros(10, np.uint8))
    assert not consumer.receive(DEADLINE_S).trace_id
