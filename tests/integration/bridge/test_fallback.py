"""A consumer without shared memory: the same frames, in memory of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tensorpool as tp
from tensorpool.bridge import Fallback, FallbackUri
from tensorpool.bridge.routes import Endpoint
from tests.integration.bridge.hosts import DEADLINE_S, Pair, settings_of


def test_frames_are_read_off_the_bridge_without_an_shm_driver(
    pair: Pair, free_stream_ids: Callable[[], int], wait_until: Callable[..., Any]
):
    source = free_stream_ids()
    table = pair.common(mappings=[{"source_stream_id": source, "dest_stream_id": 50_000}])
    pair.here.bridge(settings_of(instance_id="here", direction="send", **table))
    uri = str(
        FallbackUri(
            "here",
            Endpoint(table["payload_channel"], 3000),
            Endpoint(table["control_channel"], 3001),
            source,
        )
    )
    base = pair.there.context._base
    with (
        tp.open("standalone", aeron_dir=pair.there.context.aeron_dir, shm_base_dir=base) as ctx,
        Fallback(ctx, uri) as frames,
    ):
        epochs: list[int] = []
        for _ in range(2):
            with pair.here.context.producer(source, pools=["64KiB"], nslots=8) as producer:
                frame = wait_until(
                    lambda producer=producer: arrived(producer, frames, epochs), timeout=DEADLINE_S
                )
                assert isinstance(frame, tp.Frame)
                with frame:
                    assert frame.shape == (50, 100)
                    assert (frame.array == frame.seq % 200).all()
                epochs.append(frame.epoch)
        assert len(set(epochs)) == 2


def arrived(producer: tp.Producer, frames: tp.Consumer, epochs: list[int]) -> tp.Frame | None:
    producer.offer(np.full((50, 100), producer.next_seq % 200, np.uint8))
    return next((frame for frame in frames.poll() if frame.epoch not in epochs), None)
