"""Metadata between processes that start, end and are busy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tests.remote_process import RemoteProcess

from .conftest import DEADLINE_S, MetadataHarness
from .roles import EndpointProcess


def start_process(harness: MetadataHarness, **more: Any) -> RemoteProcess:
    return harness.stack.enter_context(RemoteProcess(EndpointProcess, {**harness.options, **more}))


def close_processes(*processes: RemoteProcess) -> None:
    for process in processes:
        process.call("close")


def test_late_process_receives_name_metadata_and_blob(harness: MetadataHarness, until) -> None:
    source = start_process(harness)
    source.call(
        "produce", stream_id=harness.stream_id, name="camera", metadata={"serial": "A1"}, dtype="float16"
    )
    source.call("set_blob", blob_type=3, length=200_000)
    source.call("offer_continuously", dtype="float16")
    late = start_process(harness)
    late.call("consume", stream_id=harness.stream_id)
    frame = until(lambda: (newest := late.call("newest_frame")) and newest["meta"] and newest)
    assert (frame["meta"]["serial"], frame["dtype"], frame["name"]) == ("A1", "float16", "camera")
    until(lambda: late.call("blob_length", blob_type=3) == 200_000)
    source.call("set_metadata", attributes={"serial": "B2"})
    until(lambda: (newest := late.call("newest_frame")) and newest["meta"]["serial"] == "B2")
    close_processes(late, source)


@pytest.mark.leaves_files("the first source is killed")
def test_metadata_of_a_restarted_producer_is_kept_apart_by_epoch(harness: MetadataHarness, until) -> None:
    reader = start_process(harness)
    reader.call("consume", stream_id=harness.stream_id)
    epochs = []
    for generation in range(3):
        source = start_process(harness)
        epochs.append(
            source.call("produce", stream_id=harness.stream_id, metadata={"generation": generation})
        )
        source.call("offer_continuously")

        def has_metadata(epoch: int = epochs[-1]) -> Any:
            frame = reader.call("newest_frame")
            # The metadata of a frame is of its own epoch, from the first frame on.
            if frame and frame["meta"] is not None:
                assert frame["meta"]["generation"] == epochs.index(frame["epoch"])
            return frame and frame["epoch"] == epoch and frame["meta"] is not None

        until(has_metadata)
        assert reader.call("newest_metadata") == {"generation": generation}
        source.kill()
    close_processes(reader)


def test_metadata_is_published_while_the_gil_is_held(harness: MetadataHarness, until) -> None:
    source, reader = start_process(harness), start_process(harness)
    source.call("produce", stream_id=harness.stream_id, metadata={"serial": "A1"})
    source.send("hold_gil", seconds=8)
    reader.call("consume", stream_id=harness.stream_id)
    until(lambda: reader.call("newest_metadata") == {"serial": "A1"})
    with pytest.raises(TimeoutError):
        source.receive(timeout=0)
    source.receive()
    close_processes(reader, source)


def test_blob_is_received_while_the_gil_is_held(harness: MetadataHarness, until) -> None:
    source, reader = start_process(harness), start_process(harness)
    source.call("produce", stream_id=harness.stream_id)
    reader.call("consume", stream_id=harness.stream_id)
    reader.send("hold_gil", seconds=1)
    source.call("set_blob", blob_type=1, length=20_000_000)
    reader.receive()
    until(lambda: reader.call("blob_length", blob_type=1) == 20_000_000)
    close_processes(reader, source)


def test_metadata_is_published_again_after_a_new_lease(
    harness: MetadataHarness, until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENSORPOOL_SERVICE__TOKEN", "open sesame")
    ctx = harness.context(mode="embedded")
    producer = ctx.producer(harness.stream_id, pools=["64KiB"], name="camera", metadata={"serial": "A1"})
    consumer = ctx.consumer(harness.stream_id, timeout=DEADLINE_S)
    producer.set_blob(2, b"table")
    first = producer.epoch

    def frame_with_metadata() -> tp.Frame | None:
        producer.offer(np.zeros(4, np.uint8))
        frame = consumer.receive_or_none(0.05)
        return frame if frame is not None and frame.meta is not None else None

    assert until(frame_with_metadata).epoch == first
    with ctx.service("driver") as driver:
        (lease,) = (lease for lease in driver.call("leases") if lease["role"] == "producer")
        driver.call("revoke", {"lease_id": lease["lease_id"]})
    until(lambda: producer.epoch not in (None, first))
    frame = until(lambda: (frame := frame_with_metadata()) and frame.epoch != first and frame)
    assert frame.meta["serial"] == "A1"
    assert consumer.blob(2, frame, timeout=DEADLINE_S) == b"table"
