"""Many frames in one call: `offer_many`, `take`, `poll_batch` and `batches`."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tests import leaks
from tests.integration.dataplane.conftest import Stream

DEADLINE_S = 60.0


@pytest.fixture
def batched(connect: Callable[..., Stream]) -> Stream:
    stream = connect(nslots=256, pools=["4KiB"])
    stream.consumer.timeout = DEADLINE_S
    return stream


def take(stream: Stream, count: int, **options: Any) -> tp.FrameBatch:
    """All frames of a batch that was offered before."""
    return stream.consumer.take(count, timeout=DEADLINE_S, at_least=count, **options)


# --- offer_many


def test_every_item_of_the_first_axis_becomes_a_frame(batched: Stream) -> None:
    block = np.arange(60, dtype=np.uint16).reshape(5, 3, 4)
    result = batched.producer.offer_many(block)
    assert result
    assert (result.count, result.published, result.outcomes) == (5, 5, {"published": 5})
    assert (result.first_seq, result.last_seq) == (0, 4)
    assert repr(result) == "<OfferManyResult 5 of 5 published seq=0..4>"
    frames = [batched.consumer.receive(DEADLINE_S) for _ in range(5)]
    assert [frame.seq for frame in frames] == [0, 1, 2, 3, 4]
    assert all((frame.array == item).all() for frame, item in zip(frames, block, strict=True))
    ledger = batched.producer.ledger()
    assert (ledger.committed, ledger.published, ledger.balanced) == (5, 5, True)


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(np.arange(48, dtype="f4").reshape(4, 3, 4)[:, ::-1], id="reversed-rows"),
        pytest.param(np.arange(48, dtype="i8").reshape(4, 12)[::-1], id="reversed-items"),
        pytest.param(np.arange(48, dtype="u1").reshape(4, 12)[::2, ::3], id="steps"),
        pytest.param(np.asfortranarray(np.arange(24, dtype="i4").reshape(2, 3, 4)), id="fortran"),
        pytest.param(np.moveaxis(np.arange(24, dtype="u2").reshape(2, 3, 4), 2, 0), id="last-axis-first"),
        pytest.param(np.broadcast_to(np.arange(4.0), (3, 4)), id="broadcast"),
        pytest.param(np.zeros((3, 0), dtype="u1"), id="empty-items"),
        pytest.param(np.array([[True, False]] * 3), id="bool"),
        pytest.param(np.arange(16, dtype="u1").reshape((2,) * 4 + (1,) * 4), id="eight-dimensions"),
    ],
)
def test_items_of_any_layout_arrive_as_they_are(batched: Stream, block: np.ndarray) -> None:
    assert batched.producer.offer_many(block)
    batch = take(batched, len(block))
    assert (batch.array.shape, batch.array.dtype) == (block.shape, block.dtype)
    assert (batch.array == block).all()


def test_numbers_become_frames_of_one_element(batched: Stream) -> None:
    assert batched.producer.offer_many(np.arange(7.0))
    batch = take(batched, 7)
    assert (batch.array.shape, batch.array.ravel().tolist()) == ((7, 1), list(range(7)))


def test_buffers_without_numpy_are_offered(batched: Stream) -> None:
    assert batched.producer.offer_many(memoryview(bytes(range(12))).cast("B", (3, 4)))
    assert take(batched, 3).array.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


def test_times_of_the_source_are_those_of_the_frames(batched: Stream) -> None:
    times = np.arange(1_000, 1_400, 100)
    assert batched.producer.offer_many(np.zeros((4, 2)), timestamps_ns=times)
    assert take(batched, 4).timestamps_ns.tolist() == times.tolist()
    assert batched.producer.offer_many(np.zeros((4, 2)))
    commits = take(batched, 4).timestamps_ns
    assert (np.diff(commits.astype("i8")) >= 0).all()
    assert commits[0] > 1_400


@pytest.mark.parametrize("times", [[1, 2], [1.5, 2.5, 3.5], [[1], [2], [3]], [1, 2, -3]])
def test_times_that_do_not_fit_are_refused(batched: Stream, times: list[Any]) -> None:
    with pytest.raises(ValueError, match="timestamps_ns"):
        batched.producer.offer_many(np.zeros((3, 2)), timestamps_ns=times)
    assert batched.producer.next_seq == 0


def test_empty_batch_publishes_nothing(batched: Stream) -> None:
    result = batched.producer.offer_many(np.zeros((0, 4)))
    assert (bool(result), result.count, result.first_seq, result.outcomes) == (True, 0, None, {})


def test_scalar_and_unsupported_items_are_refused(batched: Stream) -> None:
    with pytest.raises(ValueError, match="no first axis"):
        batched.producer.offer_many(np.float64(1))
    with pytest.raises(TypeError, match="list"):
        batched.producer.offer_many([np.zeros(3)])
    with pytest.raises(tp.UnsupportedDtype):
        batched.producer.offer_many(np.array([["a", "b"]]))
    assert batched.producer.next_seq == 0


def test_frames_without_a_pool_are_counted_and_strict_raises(batched: Stream) -> None:
    large = np.zeros((3, 5000), "u1")
    with pytest.warns(tp.OfferWarning, match="fits no pool"):
        result = batched.producer.offer_many(large)
    assert (bool(result), result.published, result.outcomes, result.first_seq) == (
        False,
        0,
        {"no_pool": 3},
        None,
    )
    with pytest.raises(tp.OfferRefused, match="fits no pool"):
        batched.producer.offer_many(large, strict=True)
    assert batched.producer.counters().no_pool == 4, "strict stops at the first"


def test_claimed_slot_stops_the_frames_behind_it(connect: Callable[..., Stream]) -> None:
    stream = connect(nslots=4)
    slot = stream.producer.claim((2,), "u1")
    result = stream.producer.offer_many(np.zeros((5, 2), "u1"))
    assert result.outcomes == {"deferred": 3, "slot_claimed": 2}
    slot.commit()
    assert take(stream, 4).seqs.tolist() == [0, 1, 2, 3]


def test_closed_producer_publishes_nothing(batched: Stream) -> None:
    batched.producer.close()
    with pytest.warns(tp.OfferWarning, match="closed"):
        result = batched.producer.offer_many(np.zeros((3, 2)))
    assert (result.published, result.outcomes) == (0, {"closed": 3})


def test_frames_of_a_batch_carry_traces(open_context: Callable[..., tp.Context], free_stream_id: int) -> None:
    context = open_context(announce_period=0.1)
    with (
        context.consumer(free_stream_id) as consumer,
        context.producer(free_stream_id, pools=["4KiB"], nslots=64, traces=True) as producer,
    ):
        assert consumer.wait_for_producer(DEADLINE_S)
        assert producer.wait_for_consumer(DEADLINE_S)
        stream = Stream(producer, consumer)
        producer.offer_many(np.zeros((3, 2)))
        roots = take(stream, 3).trace_ids
        assert roots is not None
        assert len(set(roots.tolist()) - {0}) == 3
        producer.offer_many(np.zeros((3, 2)), parents=[77])
        only = take(stream, 3).trace_ids
        assert only is not None
        assert only.tolist() == [77] * 3
        producer.offer_many(np.zeros((2, 2)), parents=[77, 78])
        joined = take(stream, 2).trace_ids
        assert joined is not None
        assert len({77, 78, *joined.tolist()}) == 4


def test_batch_without_traces_refuses_parents(batched: Stream) -> None:
    with pytest.raises(ValueError, match="traces=True"):
        batched.producer.offer_many(np.zeros((3, 2)), parents=[1])
    assert batched.producer.offer_many(np.zeros((3, 2)), trace_id=5)
    trace_ids = take(batched, 3).trace_ids
    assert trace_ids is not None
    assert trace_ids.tolist() == [5, 5, 5]


def test_consumer_with_a_rate_limit_gets_its_share(connect: Callable[..., Stream]) -> None:
    stream = connect(nslots=256, consumer={"max_rate_hz": 10.0})
    times = np.arange(100, dtype="u8") * 10_000_000  # a hundred frames in a second of the source

    def frames() -> int:
        stream.producer.offer_many(np.zeros((100, 2)), timestamps_ns=times)
        batch = stream.consumer.poll_batch(256)
        return 0 if batch is None else len(batch)

    assert leaks.wait_for(lambda: 0 < frames() < 60, timeout=DEADLINE_S)
    assert stream.consumer.ledger().dropped["rate_limited"] > 0
    assert stream.consumer.ledger().balanced


# --- take and poll_batch


def test_taken_frames_are_one_private_array(batched: Stream) -> None:
    block = np.arange(40, dtype=np.int32).reshape(10, 4)
    for item in block:
        batched.producer.offer(item)
    batch = take(batched, 10)
    assert len(batch) == 10
    assert (batch.array == block).all()
    assert (batch.seqs.tolist(), batch.seqs.dtype) == (list(range(10)), np.dtype("u8"))
    assert (batch.stream_id, batch.epoch) == (batched.producer.stream_id, batched.producer.epoch)
    assert (batch.publish_timestamps_ns, batch.trace_ids, batch.meta) == (None, None, None)
    assert repr(batch).endswith("frames=10 seq=0..9 shape=(10, 4) dtype=int32>")
    batch.array[:] = 0
    batched.producer.offer_many(np.ones((512, 4), np.int32))
    assert not batch.array.any(), "a producer cannot change it"
    assert batched.consumer.ledger().balanced


def test_take_gives_no_more_than_asked_and_keeps_the_rest(batched: Stream) -> None:
    batched.producer.offer_many(np.arange(10))
    assert take(batched, 4).seqs.tolist() == [0, 1, 2, 3]
    assert batched.consumer.receive(DEADLINE_S).seq == 4
    assert batched.consumer.poll(1)[0].seq == 5
    rest = batched.consumer.poll_batch()
    assert rest is not None
    assert rest.seqs.tolist() == [6, 7, 8, 9]
    assert batched.consumer.poll_batch() is None
    ledger = batched.consumer.ledger()
    assert (ledger.received, ledger.span, ledger.balanced) == (10, 10, True)


def test_take_times_out_without_frames_and_returns_what_came(batched: Stream) -> None:
    with pytest.raises(tp.ReceiveTimeout, match="no frame"):
        batched.consumer.take(4, timeout=0.01)
    batched.producer.offer_many(np.arange(3))
    assert len(batched.consumer.take(4, timeout=0.05, at_least=4)) == 3


def test_take_waits_for_as_many_as_asked(batched: Stream) -> None:
    taken: list[tp.FrameBatch] = []
    thread = threading.Thread(target=lambda: taken.append(take(batched, 600)))
    thread.start()
    for first in range(0, 600, 100):
        while batched.consumer.ledger().received < first:
            pass
        batched.producer.offer_many(np.arange(first, first + 100))
    thread.join(DEADLINE_S)
    assert taken[0].array.ravel().tolist() == list(range(600)), "more frames than the ring has slots"


@pytest.mark.parametrize(
    "second",
    [
        pytest.param(np.zeros((3, 5), "u2"), id="shape"),
        pytest.param(np.zeros((3, 4), "i2"), id="dtype"),
        pytest.param(np.zeros((3, 2, 2), "u2"), id="dimensions"),
        pytest.param(np.asfortranarray(np.zeros((3, 2, 2), "u2")), id="dimensions-fortran"),
    ],
)
def test_batch_ends_before_a_frame_of_another_layout(batched: Stream, second: np.ndarray) -> None:
    batched.producer.offer_many(np.zeros((3, 4), "u2"))
    batched.producer.offer_many(second)
    batched.producer.offer_many(np.zeros((3, 4), "u2"))
    batches = [batched.consumer.take(100, timeout=DEADLINE_S) for _ in range(3)]
    assert [batch.seqs.tolist() for batch in batches] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert (batches[1].array.shape, batches[1].array.dtype) == (second.shape, second.dtype)
    assert batched.consumer.ledger().received == 9


@pytest.mark.parametrize("method", ["poll", "receive", "latest", "iterate"])
def test_frame_that_ended_a_batch_is_the_next_of_every_method(batched: Stream, method: str) -> None:
    consumer = batched.consumer
    batched.producer.offer_many(np.zeros((3, 4)))
    batched.producer.offer(np.ones(5))
    assert len(consumer.take(100, timeout=DEADLINE_S)) == 3
    assert consumer.wait(0), "a frame is there"
    frame = {
        "poll": lambda: consumer.poll(1)[0],
        "receive": lambda: consumer.receive(DEADLINE_S),
        "latest": consumer.latest,
        "iterate": lambda: next(consumer),
    }[method]()
    assert frame is not None
    assert (frame.seq, frame.array.tolist()) == (3, [1] * 5)
    assert consumer.poll(1) == []
    ledger = consumer.ledger()
    assert (ledger.received, ledger.span, ledger.balanced) == (4, 4, True)


def test_latest_skips_the_frame_that_ended_a_batch(batched: Stream) -> None:
    batched.producer.offer_many(np.zeros((3, 4)))
    batched.producer.offer(np.ones(5))
    assert len(batched.consumer.take(100, timeout=DEADLINE_S)) == 3
    batched.producer.offer(np.ones(6))
    frame = batched.consumer.latest()
    assert frame is not None
    assert frame.seq == 4
    ledger = batched.consumer.ledger()
    assert (ledger.received, ledger.dropped["skipped"], ledger.balanced) == (4, 1, True)


def test_frame_that_was_never_delivered_is_not_received(batched: Stream) -> None:
    batched.producer.offer_many(np.zeros((3, 4)))
    batched.producer.offer(np.ones(5))
    assert len(batched.consumer.take(100, timeout=DEADLINE_S)) == 3
    batched.consumer.close()
    ledger = batched.consumer.ledger()
    assert (ledger.received, ledger.dropped["late"], ledger.balanced) == (3, 1, True)


def test_metadata_version_ends_a_batch(open_context: Callable[..., tp.Context], free_stream_id: int) -> None:
    context = open_context(announce_period=0.1)
    with (
        context.consumer(free_stream_id) as consumer,
        context.producer(free_stream_id, pools=["4KiB"], nslots=64, metadata={"gain": 1}) as producer,
    ):
        assert consumer.wait_for_producer(DEADLINE_S)
        assert producer.wait_for_consumer(DEADLINE_S)
        assert consumer.wait_for_metadata(DEADLINE_S, key="gain") is not None
        producer.offer_many(np.zeros((3, 2)))
        producer.set_metadata({"gain": 2})
        producer.offer_many(np.zeros((3, 2)))
        first, second = (consumer.take(100, timeout=DEADLINE_S) for _ in range(2))
        assert (len(first), len(second)) == (3, 3)
        assert second.meta_version == first.meta_version + 1
        assert first.meta is not None
        assert first.meta["gain"] == 1


@pytest.mark.parametrize("dtype", ["complex64", "complex128", "float16"])
def test_declared_element_types_are_batched(
    open_context: Callable[..., tp.Context], free_stream_id: int, dtype: str
) -> None:
    context = open_context(announce_period=0.1)
    block = (np.arange(12) + 1j * np.arange(12) if "complex" in dtype else np.arange(12)).astype(dtype)
    with (
        context.consumer(free_stream_id) as consumer,
        context.producer(free_stream_id, pools=["4KiB"], nslots=64, metadata={}) as producer,
    ):
        assert consumer.wait_for_producer(DEADLINE_S)
        assert producer.wait_for_consumer(DEADLINE_S)
        stream = Stream(producer, consumer)
        assert producer.offer_many(block.reshape(3, 4))
        batch = take(stream, 3)
        assert (batch.array.dtype, batch.array.tolist()) == (block.dtype, block.reshape(3, 4).tolist())
        out = np.empty((5, 4), dtype)
        producer.offer_many(block.reshape(3, 4))
        assert np.shares_memory(take(stream, 3, out=out).array, out)
        assert (out[:3] == block.reshape(3, 4)).all()
        assert producer.offer_many(block)
        assert take(stream, 12).array.ravel().tolist() == block.tolist()


def test_padded_frames_keep_their_layout(connect: Callable[..., Stream]) -> None:
    stream = connect(nslots=64)
    lines = np.arange(64, dtype="u2").reshape(4, 16)
    for _ in range(3):
        stream.producer.offer(lines[:, :5], keep_strides=True)
    batch = take(stream, 3)
    assert (batch.array == lines[:, :5]).all()
    stream.producer.offer(lines[:, :5], keep_strides=True)
    out = np.zeros((1, 4, 5), "u2")
    assert (take(stream, 1, out=out).array == lines[:, :5]).all()
    assert (out[0] == lines[:, :5]).all()


# --- out


def test_out_receives_the_frames(batched: Stream) -> None:
    out = np.full((8, 4), -1.0)
    batched.producer.offer_many(np.ones((5, 4)))
    batch = take(batched, 5, out=out)
    assert np.shares_memory(batch.array, out)
    assert batch.array.shape == (5, 4)
    assert out[:5].all()
    assert (out[5:] == -1).all()
    batched.producer.offer_many(np.ones((12, 4)))
    assert len(take(batched, 8, out=out)) == 8, "no more than out has rows"


def test_out_that_is_not_contiguous_receives_the_frames(batched: Stream) -> None:
    wide = np.full((8, 8), -1.0)
    batched.producer.offer_many(np.arange(8.0).reshape(2, 4))
    batch = take(batched, 2, out=wide[:, ::2])
    assert batch.array.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert wide[:2, ::2].tolist() == batch.array.tolist()
    assert (wide[:, 1::2] == -1).all()


@pytest.mark.parametrize(
    ("out", "match"),
    [
        (np.zeros((8, 5)), "next frame has shape"),
        (np.zeros((8, 4), "f4"), "next frame has shape"),
        (np.zeros((0, 4)), "next frame has shape"),
        (np.zeros(4), "next frame has shape"),
        (np.broadcast_to(np.zeros(4), (8, 4)), "read-only"),
        ([[0.0] * 4], "no numpy array"),
    ],
)
def test_out_that_does_not_fit_is_refused_and_the_frames_stay(batched: Stream, out: Any, match: str) -> None:
    batched.producer.offer_many(np.ones((5, 4)))
    assert batched.consumer.wait(DEADLINE_S)
    with pytest.raises((ValueError, TypeError), match=match):
        batched.consumer.take(5, out=out, timeout=DEADLINE_S)
    assert take(batched, 5).seqs.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("n", "at_least"), [(0, 1), (4, 0), (4, 5)])
def test_impossible_numbers_are_refused(batched: Stream, n: int, at_least: int) -> None:
    with pytest.raises(ValueError, match="at_least"):
        batched.consumer.take(n, at_least=at_least)
    with pytest.raises(tp.ConfigError, match="1 or more"):
        batched.consumer.batches(0)


# --- loops, threads, processes


def test_overwritten_frames_are_left_out_and_counted(connect: Callable[..., Stream]) -> None:
    stream = connect(nslots=8)
    stream.producer.offer_many(np.arange(100))
    batch = stream.consumer.take(100, timeout=DEADLINE_S)
    assert batch.array.ravel().tolist() == batch.seqs.tolist()
    assert len(batch) <= 8
    ledger = stream.consumer.ledger()
    assert (ledger.span, ledger.received, ledger.balanced) == (100, len(batch), True)
    assert ledger.dropped["late"] + ledger.dropped["resync"] == 100 - len(batch)


def test_batches_are_iterated_until_the_close(batched: Stream) -> None:
    batched.producer.offer_many(np.arange(10))
    seen: list[int] = []
    for batch in batched.consumer.batches(4):
        seen += batch.seqs.tolist()
        if len(seen) == 10:
            batched.consumer.close()
    assert seen == list(range(10))
    with pytest.raises(tp.ReceiveTimeout, match="closed"):
        batched.consumer.take(4)
    assert batched.consumer.poll_batch() is None


def test_batches_are_iterated_by_asyncio(batched: Stream) -> None:
    async def read() -> list[int]:
        seen: list[int] = []
        async for batch in batched.consumer.batches(4):
            seen += batch.seqs.tolist()
            if len(seen) == 10:
                batched.consumer.close()
        return seen

    async def main() -> list[int]:
        reading = asyncio.create_task(read())
        await asyncio.sleep(0)
        for first in range(0, 10, 5):
            batched.producer.offer_many(np.arange(first, first + 5))
            await asyncio.sleep(0.01)
        return await asyncio.wait_for(reading, DEADLINE_S)

    assert asyncio.run(main()) == list(range(10))


def test_iteration_of_batches_times_out(batched: Stream) -> None:
    batched.consumer.timeout = 0.01
    with pytest.raises(tp.ReceiveTimeout, match="no frame"):
        next(iter(batched.consumer.batches()))


def test_threads_share_the_frames(batched: Stream) -> None:
    taken: list[list[int]] = [[], []]

    def read(seqs: list[int]) -> None:
        while (batch := batched.consumer.take_or_none(16, timeout=DEADLINE_S)) is not None:
            seqs += batch.seqs.tolist()

    threads = [threading.Thread(target=read, args=(seqs,)) for seqs in taken]
    for thread in threads:
        thread.start()
    for first in range(0, 2000, 100):
        while batched.consumer.ledger().received < first:
            pass
        batched.producer.offer_many(np.arange(first, first + 100))
    while batched.consumer.ledger().received < 2000:
        pass
    batched.consumer.close()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert sorted(taken[0] + taken[1]) == list(range(2000))


def test_batches_are_refused_in_a_forked_child(batched: Stream) -> None:
    batched.producer.offer_many(np.arange(3))
    child = os.fork()
    if child == 0:
        status = 0
        for call in (
            lambda: batched.producer.offer_many(np.arange(3)),
            lambda: batched.consumer.take(3, timeout=1),
            batched.consumer.poll_batch,
        ):
            try:
                call()
                status = 1
            except tp.ForkedError:
                pass
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert take(batched, 3).seqs.tolist() == [0, 1, 2]
