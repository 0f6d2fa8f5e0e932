"""Both directions in one instance, several receivers, many mappings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.integration.bridge.hosts import DEADLINE_S, Pair, channel, row, settings_of
from tests.ports import free_port


@pytest.mark.requirement("bridge-2.3-1", "bridge-2.3-2")
def test_one_instance_sends_and_receives(
    pair: Pair, free_stream_ids: Callable[[], int], wait_until: Callable[..., Any]
):
    out, out_there, back, back_here = (free_stream_ids() for _ in range(4))
    to_there, to_here = (
        {name: channel(free_port()) for name in ("payload_channel", "control_channel", "metadata_channel")}
        for _ in range(2)
    )
    agents = []
    for host, directions in ((pair.here, ("send", "receive")), (pair.there, ("receive", "send"))):
        forward = {"source_stream_id": out, "dest_stream_id": out_there, "direction": directions[0]}
        reverse = {
            "source_stream_id": back,
            "dest_stream_id": back_here,
            "direction": directions[1],
            **to_here,
        }
        agents.append(
            host.bridge(settings_of(instance_id=host.name, mappings=[forward, reverse], **to_there))
        )
    producers = [
        pair.here.context.producer(out, pools=["4KiB"]),
        pair.there.context.producer(back, pools=["4KiB"]),
    ]
    consumers = [pair.there.context.consumer(out_there), pair.here.context.consumer(back_here)]
    for number, (producer, consumer) in enumerate(zip(producers, consumers, strict=True)):

        def arrived(producer: Any = producer, consumer: Any = consumer, number: int = number) -> bool:
            producer.offer(np.full(3000, number + 1, np.uint8))
            return any((frame.copy() == number + 1).all() for frame in consumer.poll())

        wait_until(arrived, timeout=DEADLINE_S)
    assert [sorted(row["direction"] for row in agent.rows()) for agent in agents] == [["receive", "send"]] * 2


def test_multi_destination_serves_several_receivers(pair: Pair, free_stream_ids: Callable[[], int]):
    source, dests = free_stream_ids(), [free_stream_ids() for _ in range(2)]
    ports = [free_port() for _ in range(2)]

    def sender_channel(port: int) -> str:
        return f"aeron:udp?control=127.0.0.1:{port}|control-mode=dynamic"

    def receiver_channel(port: int) -> str:
        return f"aeron:udp?endpoint=127.0.0.1:0|control=127.0.0.1:{port}|control-mode=dynamic"

    common: dict[str, Any] = {"forward_metadata": False}
    receivers = [
        pair.there.bridge(
            settings_of(
                instance_id=f"there-{number}",
                direction="receive",
                payload_channel=receiver_channel(ports[0]),
                control_channel=receiver_channel(ports[1]),
                mappings=[{"source_stream_id": source, "dest_stream_id": dest}],
                **common,
            )
        )
        for number, dest in enumerate(dests)
    ]
    producer = pair.here.context.producer(source, pools=["64KiB"], nslots=64)
    sender = pair.here.bridge(
        settings_of(
            instance_id="here",
            direction="send",
            payload_channel=sender_channel(ports[0]),
            control_channel=sender_channel(ports[1]),
            mappings=[{"source_stream_id": source}],
            **common,
        )
    )
    pair.wait_until(
        lambda: (
            row(sender)["epoch"] == str(producer.epoch)
            and all(
                row(receiver)["destination"] == "attached" and row(receiver)["connected"]
                for receiver in receivers
            )
        ),
        timeout=DEADLINE_S,
    )
    consumers = [pair.there.context.consumer(dest) for dest in dests]
    pair.wait_until(lambda: all(consumer.epoch is not None for consumer in consumers), timeout=DEADLINE_S)
    for _ in range(10):
        producer.offer(np.full(20_000, producer.next_seq + 1, np.uint8))
    for consumer in consumers:
        for seq in range(10):
            frame = consumer.receive(DEADLINE_S)
            assert frame.seq == seq
            assert (frame.copy() == seq + 1).all()
    assert [row(receiver)["delivered"] for receiver in receivers] == [10, 10]


def test_many_mappings_share_one_payload_stream(
    pair: Pair, free_stream_ids: Callable[[], int], wait_until: Callable[..., Any]
):
    sources, dests = ([free_stream_ids() for _ in range(10)] for _ in range(2))
    mappings = [
        {"source_stream_id": source, "dest_stream_id": dest}
        for source, dest in zip(sources, dests, strict=True)
    ]
    table = pair.common(mappings=mappings)
    receiver = pair.there.bridge(settings_of(instance_id="there", direction="receive", **table))
    sender = pair.here.bridge(settings_of(instance_id="here", direction="send", **table))
    producers = [pair.here.context.producer(source, pools=["4KiB"], nslots=8) for source in sources]
    wait_until(
        lambda: (
            all(status["destination"] == "attached" for status in receiver.receiver_rows())
            and [status["epoch"] for status in sender.rows()] == [str(camera.epoch) for camera in producers]
        ),
        timeout=DEADLINE_S,
    )
    for producer in producers:
        producer.offer(np.zeros(4000, np.uint8))
    wait_until(
        lambda: [status["delivered"] for status in receiver.receiver_rows()] == [1] * 10, timeout=DEADLINE_S
    )
