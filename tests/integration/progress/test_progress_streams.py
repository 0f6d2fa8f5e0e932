"""The streams on which progress is published and received (wire §5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tensorpool as tp
from tensorpool.sbe import ConsumerConfig, ConsumerHello, FrameProgress, FrameProgressState, Mode
from tests.integration.hello.conftest import RawMessages

from .conftest import EVERY_STEP, ProgressHarness

# A producer whose id range differs from the one of this process grants no control stream.
OTHER_IDS = {
    "TENSORPOOL_CONTEXT__PER_CONSUMER_CONTROL_IDS": "34000-34999",
}


def progress_on(messages: RawMessages, stream_id: int) -> list[FrameProgress]:
    return [
        message
        for message in messages.receive()
        if isinstance(message, FrameProgress) and message.stream_id == stream_id
    ]


@pytest.mark.requirement("wire-5-5", "wire-5-7")
def test_granted_control_stream_carries_only_progress(
    harness: ProgressHarness, context: tp.Context, raw_messages: Callable[..., RawMessages]
) -> None:
    control = raw_messages()
    consumer = context.consumer(harness.stream_id, **EVERY_STEP)
    camera = harness.camera()
    harness.wait_granted(camera, consumer)
    granted_control = consumer.state().control
    assert granted_control is not None
    channel, control_stream_id = granted_control
    config = control.find(ConsumerConfig, stream_id=harness.stream_id, control_stream_id=control_stream_id)
    assert isinstance(config, ConsumerConfig)
    assert (config.control_channel, config.consumer_id) == (channel, consumer.state().consumer_id)
    granted = raw_messages(control_stream_id)
    seq = camera.call("claim", shape=[4, 5], progress="rows")
    # The test may subscribe after the first messages, and receives the following ones.
    harness.wait_until(lambda: granted.is_connected)
    camera.call("fill", seq=seq, first=0, last=4)
    camera.call("offer")
    camera.call("commit", seq=seq)
    granted.find(FrameProgress, state=FrameProgressState.COMPLETE)
    assert {type(message) for message in granted.received} == {FrameProgress}
    parts = consumer.poll_progress()
    assert (parts[0].state, parts[-1].state, parts[-1].bytes_filled) == ("started", "complete", 40)
    assert len(parts) > 2
    assert progress_on(control, harness.stream_id) == []


@pytest.mark.requirement("wire-5-6")
def test_consumer_with_a_control_stream_still_receives_configs(
    harness: ProgressHarness, context: tp.Context, raw_messages: Callable[..., RawMessages]
) -> None:
    control = raw_messages()
    consumer = context.consumer(harness.stream_id, **EVERY_STEP)
    camera = harness.camera()
    harness.wait_granted(camera, consumer)
    state = consumer.state()
    seq = camera.call("claim", shape=[4, 5], progress="rows")
    assert consumer.epoch is not None
    other_progress = FrameProgress(
        stream_id=harness.stream_id,
        epoch=consumer.epoch,
        seq=seq,
        payload_bytes_filled=30,
        state=FrameProgressState.PROGRESS,
    )
    control.publish(other_progress)
    assert state.control is not None
    channel, control_stream_id = state.control
    control.publish(
        ConsumerConfig(
            stream_id=harness.stream_id,
            consumer_id=state.consumer_id or 0,
            use_shm=True,
            mode=Mode.STREAM,
            descriptor_channel=channel,
            descriptor_stream_id=control_stream_id + 1,
            control_channel=channel,
            control_stream_id=control_stream_id,
        )
    )
    harness.wait_until(lambda: consumer.state().descriptors == (channel, control_stream_id + 1))
    assert [part.bytes_filled for part in consumer.poll_progress()] == [0], (
        "progress arrives on the per-consumer stream"
    )


def test_declined_consumer_receives_progress_on_the_shared_stream(
    harness: ProgressHarness, context: tp.Context, collect_parts: Callable[..., list[tp.Progress]]
) -> None:
    consumer = context.consumer(harness.stream_id, **EVERY_STEP)
    camera = harness.camera(env=OTHER_IDS)
    harness.wait_granted(camera, consumer, on_per_consumer=False)
    assert consumer.state().control is None
    last = camera.call("claim", shape=[4, 5], progress="rows")
    camera.call("fill", seq=last, first=0, last=4, shift=3)
    part = collect_parts(consumer, lambda part: part.seq == last and part.rows == 4)[-1]
    assert part.array[:, 0].tolist() == [3, 4, 5, 6]


def test_foreign_consumer_receives_progress_on_the_shared_stream(
    harness: ProgressHarness, raw_messages: Callable[..., RawMessages]
) -> None:
    control = raw_messages()
    camera = harness.camera()
    fields: dict[str, Any] = {"progress_interval_us": 0, "progress_bytes_delta": 1}
    hello = ConsumerHello(
        stream_id=harness.stream_id,
        consumer_id=77,
        supports_shm=True,
        supports_progress=True,
        mode=Mode.STREAM,
        expected_layout_version=1,
        **fields,
    )

    def has_all_steps() -> bool:
        control.publish(hello)
        seq = camera.call("claim", shape=[4, 5], progress="rows")
        camera.call("fill", seq=seq, first=0, last=4)
        camera.call("commit", seq=seq)
        progress = [each for each in progress_on(control, harness.stream_id) if each.seq == seq]
        # Some steps may be combined.
        return {("STARTED", 0), ("PROGRESS", 30), ("PROGRESS", 40), ("COMPLETE", 40)} <= {
            (each.state.name, each.payload_bytes_filled) for each in progress
        }

    harness.wait_until(has_all_steps)
