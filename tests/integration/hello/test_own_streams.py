"""Control and QoS streams of single streams, so that a thousand streams do not share one (decision 41)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tensorpool.sbe import ConsumerHello, QosConsumer, QosProducer, decode

DEADLINE_S = 60.0


class Listener:
    """The messages of one stream."""

    def __init__(self, ctx: tp.Context, stream_id: int) -> None:
        self.subscription = ctx.connection.subscription(stream_id)
        self.kinds: set[type] = set()

    def poll(self) -> set[type]:
        self.kinds |= {type(decode(message)) for message in self.subscription.poll(1024)}
        return self.kinds


def test_endpoints_with_own_streams_leave_the_shared_ones_alone(
    aeron_dir: Path, shm_base: Path, free_stream_id: int, wait_until: Callable[..., Any]
) -> None:
    own: dict[str, Any] = {"control_stream_id": 6100, "qos_stream_id": 6200}
    with tp.open("embedded", aeron_dir=aeron_dir, shm_base_dir=shm_base) as ctx:
        ids = ctx.stream_ids
        shared = [Listener(ctx, stream_id) for stream_id in (ids.control, ids.qos)]
        control, qos = Listener(ctx, 6100), Listener(ctx, 6200)
        wait_until(lambda: all(each.subscription.is_ready for each in (*shared, control, qos)))
        producer = ctx.producer(free_stream_id, **own)
        # Progress without a per-consumer stream comes on the control stream.
        consumer = ctx.consumer(free_stream_id, progress=True, per_consumer_control=False, **own)
        assert producer.wait_for_consumer(DEADLINE_S)
        assert producer.offer(np.arange(3)).outcome == "published"
        assert consumer.receive(DEADLINE_S).shape == (3,)
        wait_until(lambda: ConsumerHello in control.poll())
        wait_until(lambda: {QosConsumer, QosProducer} <= qos.poll())
        wait_until(lambda: producer.has_progress_consumers)
        for listener in shared:
            assert not {ConsumerHello, QosConsumer, QosProducer} & listener.poll()
        for listener in (*shared, control, qos):
            listener.subscription.close()


@pytest.mark.parametrize("name", ["control_stream_id", "qos_stream_id"])
def test_own_stream_must_be_an_aeron_stream(
    aeron_dir: Path, shm_base: Path, free_stream_id: int, name: str
) -> None:
    own: dict[str, Any] = {name: 0}
    with (
        tp.open("embedded", aeron_dir=aeron_dir, shm_base_dir=shm_base) as ctx,
        pytest.raises(tp.ConfigError, match="stream id 0: use 1 to"),
    ):
        ctx.producer(free_stream_id, **own)
