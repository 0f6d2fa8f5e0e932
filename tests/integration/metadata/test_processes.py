"""Metadata between processes that come, go and are busy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tests.remote_process import RemoteProcess

from .conftest import DEADLINE_S, Stage
from .roles import Member


def member(stage: Stage, **more: Any) -> RemoteProcess:
    return stage.stack.enter_context(RemoteProcess(Member, {**stage.options, **more}))


def ended(*members: RemoteProcess) -> None:
    for one in members:
        one.call("close")


def test_who_joins_late_knows_what_its_frames_are(stage: Stage, until) -> None:
    source = member(stage)
    source.call(
        "produce", stream_id=stage.stream_id, name="camera", metadata={"serial": "A1"}, dtype="float16"
    )
    source.call("set_blob", blob_type=3, length=200_000)
    source.call("offer_always", dtype="float16")
    late = member(stage)
    late.call("consume", stream_id=stage.stream_id)
    found = until(lambda: (seen := late.call("look")) and seen["meta"] and seen)
    assert (found["meta"]["serial"], found["dtype"], found["name"]) == ("A1", "float16", "camera")
    until(lambda: late.call("blob_length", blob_type=3) == 200_000)
    source.call("set_metadata", attributes={"serial": "B2"})
    until(lambda: (seen := late.call("look")) and seen["meta"]["serial"] == "B2")
    ended(late, source)


@pytest.mark.leaves_files("the first source is killed")
def test_a_source_that_was_killed_and_came_back_counts_anew_and_is_not_mixed_up(stage: Stage, until) -> None:
    reader = member(stage)
    reader.call("consume", stream_id=stage.stream_id)
    epochs = []
    for generation in range(3):
        source = member(stage)
        epochs.append(source.call("produce", stream_id=stage.stream_id, metadata={"generation": generation}))
        source.call("offer_always")

        def seen(epoch: int = epochs[-1]) -> Any:
            look = reader.call("look")
            # Whatever is known of a frame is of its own epoch, from the first one on.
            if look and look["meta"] is not None:
                assert look["meta"]["generation"] == epochs.index(look["epoch"])
            return look and look["epoch"] == epoch and look["meta"] is not None

        until(seen)
        assert reader.call("newest") == {"generation": generation}
        source.kill()
    ended(reader)


def test_a_busy_interpreter_delays_no_words(stage: Stage, until) -> None:
    source, reader = member(stage), member(stage)
    source.call("produce", stream_id=stage.stream_id, metadata={"serial": "A1"})
    source.send("hold_the_interpreter", seconds=8)
    reader.call("consume", stream_id=stage.stream_id)
    until(lambda: reader.call("newest") == {"serial": "A1"})
    with pytest.raises(TimeoutError):
        source.receive(timeout=0)
    source.receive()
    ended(reader, source)


def test_a_reader_whose_interpreter_is_busy_misses_no_blob(stage: Stage, until) -> None:
    source, reader = member(stage), member(stage)
    source.call("produce", stream_id=stage.stream_id)
    reader.call("consume", stream_id=stage.stream_id)
    reader.send("hold_the_interpreter", seconds=1)
    source.call("set_blob", blob_type=1, length=20_000_000)
    reader.receive()
    until(lambda: reader.call("blob_length", blob_type=1) == 20_000_000)
    ended(reader, source)


def test_a_new_lease_takes_the_words_along(stage: Stage, until, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORPOOL_SERVICE__TOKEN", "open sesame")
    ctx = stage.context(mode="embedded")
    producer = ctx.producer(stage.stream_id, pools=["64KiB"], name="camera", metadata={"serial": "A1"})
    consumer = ctx.consumer(stage.stream_id, timeout=DEADLINE_S)
    producer.set_blob(2, b"table")
    first = producer.epoch

    def described() -> tp.Frame | None:
        producer.offer(np.zeros(4, np.uint8))
        frame = consumer.receive_or_none(0.05)
        return frame if frame is not None and frame.meta is not None else None

    assert until(described).epoch == first
    with ctx.service("driver") as driver:
        (lease,) = (one for one in driver.call("leases") if one["role"] == "producer")
        driver.call("revoke", {"lease_id": lease["lease_id"]})
    until(lambda: producer.epoch not in (None, first))
    again = until(lambda: (frame := described()) and frame.epoch != first and frame)
    assert again.meta["serial"] == "A1"
    assert consumer.blob(2, again, timeout=DEADLINE_S) == b"table"
