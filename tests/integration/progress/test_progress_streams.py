"""On which stream progress goes out and comes in (wire §5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tensorpool as tp
from tensorpool.sbe import ConsumerConfig, ConsumerHello, FrameProgress, FrameProgressState, Mode
from tests.integration.hello.conftest import Wire

from .conftest import EAGER, Studio

# A producer that grants no stream of the ids that this process asks for.
ELSEWHERE = {
    "TENSORPOOL_CONTEXT__PER_CONSUMER_CONTROL_IDS": "34000-34999",
}


def progress_on(wire: Wire, stream_id: int) -> list[FrameProgress]:
    return [m for m in wire.listen() if isinstance(m, FrameProgress) and m.stream_id == stream_id]


@pytest.mark.requirement("wire-5-5", "wire-5-7")
def test_a_granted_stream_carries_this_consumers_progress_and_nothing_else(
    studio: Studio, context: tp.Context, wire: Callable[..., Wire]
) -> None:
    control = wire()
    consumer = context.consumer(studio.stream_id, **EAGER)
    camera = studio.camera()
    studio.listens(camera, consumer)
    channel, lane_id = consumer.standing()["control"]
    config = control.find(ConsumerConfig, stream_id=studio.stream_id, control_stream_id=lane_id)
    assert isinstance(config, ConsumerConfig)
    assert (config.control_channel, config.consumer_id) == (channel, consumer.standing()["consumer_id"])
    own = wire(lane_id)
    seq = camera.call("claim", shape=[4, 5], progress="rows")
    # Our ear may have come after the first words; what follows it hears.
    studio.wait_until(lambda: own._subscription.is_connected)
    camera.call("fill", seq=seq, first=0, last=4)
    camera.call("offer")
    camera.call("commit", seq=seq)
    own.find(FrameProgress, state=FrameProgressState.COMPLETE)
    assert {type(message) for message in own.heard} == {FrameProgress}
    parts = consumer.poll_progress()
    assert (parts[0].state, parts[-1].state, parts[-1].bytes_filled) == ("started", "complete", 40)
    assert len(parts) > 2
    assert progress_on(control, studio.stream_id) == []


@pytest.mark.requirement("wire-5-6")
def test_with_a_stream_of_its_own_it_hears_the_rest_on_the_shared_one(
    studio: Studio, context: tp.Context, wire: Callable[..., Wire]
) -> None:
    control = wire()
    consumer = context.consumer(studio.stream_id, **EAGER)
    camera = studio.camera()
    studio.listens(camera, consumer)
    standing = consumer.standing()
    seq = camera.call("claim", shape=[4, 5], progress="rows")
    assert consumer.epoch is not None
    stray = FrameProgress(
        stream_id=studio.stream_id,
        epoch=consumer.epoch,
        seq=seq,
        payload_bytes_filled=30,
        state=FrameProgressState.PROGRESS,
    )
    control.say(stray)
    channel, lane_id = standing["control"]
    control.say(
        ConsumerConfig(
            stream_id=studio.stream_id,
            consumer_id=standing["consumer_id"],
            use_shm=True,
            mode=Mode.RATE_LIMITED,
            control_channel=channel,
            control_stream_id=lane_id,
        )
    )
    studio.wait_until(lambda: consumer.standing()["mode"] == "rate_limited")
    assert [part.bytes_filled for part in consumer.poll_progress()] == [0], "progress comes on its own stream"


def test_who_is_granted_none_hears_it_on_the_shared_stream(
    studio: Studio, context: tp.Context, parts_of: Callable[..., list[tp.Progress]]
) -> None:
    consumer = context.consumer(studio.stream_id, **EAGER)
    camera = studio.camera(env=ELSEWHERE)
    studio.listens(camera, consumer, on_own=False)
    assert consumer.standing()["control"] is None
    last = camera.call("claim", shape=[4, 5], progress="rows")
    camera.call("fill", seq=last, first=0, last=4, shift=3)
    part = parts_of(consumer, lambda part: part.seq == last and part.rows == 4)[-1]
    assert part.array[:, 0].tolist() == [3, 4, 5, 6]


def test_a_stranger_without_a_stream_of_its_own_hears_it_on_the_shared_one(
    studio: Studio, wire: Callable[..., Wire]
) -> None:
    control = wire()
    camera = studio.camera()
    fields: dict[str, Any] = {"progress_interval_us": 0, "progress_bytes_delta": 1}
    hello = ConsumerHello(
        stream_id=studio.stream_id,
        consumer_id=77,
        supports_shm=True,
        supports_progress=True,
        mode=Mode.STREAM,
        expected_layout_version=1,
        **fields,
    )

    def told() -> bool:
        control.say(hello)
        seq = camera.call("claim", shape=[4, 5], progress="rows")
        camera.call("fill", seq=seq, first=0, last=4)
        camera.call("commit", seq=seq)
        words = [p for p in progress_on(control, studio.stream_id) if p.seq == seq]
        # One step or another may be left out.
        return {("STARTED", 0), ("PROGRESS", 30), ("PROGRESS", 40), ("COMPLETE", 40)} <= {
            (p.state.name, p.payload_bytes_filled) for p in words
        }

    studio.wait_until(told)
