"""Live joins of real producers: by sequence, by time, by the newest frames."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorpool as tp

DEADLINE_S = 60
WaitUntil = Callable[..., Any]
StreamIds = Callable[[], int]


def offer(producer: tp.Producer, value: int, timestamp_ns: int | None = None) -> None:
    assert producer.offer(np.full(16, value, np.int64), timestamp_ns=timestamp_ns)


def pair(ctx: tp.Context, ids: StreamIds, nslots: int = 64) -> tuple[tp.Producer, tp.Producer]:
    options: Any = {"pools": ["4KiB"], "nslots": nslots}
    return ctx.producer(ids(), **options), ctx.producer(ids(), **options)


def test_frames_of_the_same_sequence_are_joined_in_place(ctx: tp.Context, free_stream_ids: StreamIds) -> None:
    left, right = pair(ctx, free_stream_ids)
    with ctx.join({"left": left.stream_id, "right": right.stream_id}, by="sequence") as pairs:
        assert pairs.wait_for_producers(DEADLINE_S)
        for number in range(10):
            offer(left, number)
        for number in range(10):
            offer(right, 100 + number)
        for number in range(10):
            joined = pairs.receive(DEADLINE_S)
            with joined:
                assert joined.seq == number
                assert joined["left"].array[0] == number
                assert joined["right"].array[0] == 100 + number
                assert not joined["left"].array.flags.owndata
            assert joined.valid()
            assert (joined.absent, len(joined), joined.timestamp_ns) == ((), 2, None)
            assert [frame.stream_id for frame in joined] == [left.stream_id, right.stream_id]
            assert "left" in joined
            assert dict(joined.items())["right"].seq == number
        assert pairs.receive_or_none(0) is None
        ledger = pairs.ledger()
        assert ledger.results == 10
        assert ledger.balanced
        assert str(ledger.inputs["left"]) == "received 10 = joined 10"
        with pytest.raises(KeyError, match="the inputs are left, right"):
            joined["centre"]
    assert pairs.closed
    assert list(pairs) == []


def test_inputs_are_found_by_name(ctx: tp.Context, free_stream_ids: StreamIds) -> None:
    with (
        ctx.producer(free_stream_ids(), name="camera-1", pools=["4KiB"]) as left,
        ctx.producer(free_stream_ids(), name="camera-2", pools=["4KiB"]) as right,
        ctx.join({"left": "camera-1", "right": "camera-2"}) as pairs,
    ):
        assert pairs.wait_for_producers(DEADLINE_S)
        offer(left, 1)
        offer(right, 2)
        assert pairs.receive(DEADLINE_S)["right"].array[0] == 2
        assert "by=sequence" in repr(pairs)


def test_sequences_that_one_stream_lost_are_counted_where_they_lack(
    ctx: tp.Context, free_stream_ids: StreamIds
) -> None:
    left, right = pair(ctx, free_stream_ids)
    with ctx.join({"left": left.stream_id, "right": right.stream_id}) as pairs:
        assert pairs.wait_for_producers(DEADLINE_S)
        for number in range(6):
            offer(left, number)
        for number in range(6):
            if number in (2, 3):
                # An abandoned claim leaves a sequence without a frame once newer ones are committed.
                slot = right.claim((16,), np.int64)
                right.offer(np.full(16, -1, np.int64))
                slot.abandon()
            else:
                offer(right, number)
        joined = [pairs.receive(DEADLINE_S)["left"].seq for _ in range(4)]
        ledger = pairs.ledger()
    assert len(joined) == 4
    assert ledger.balanced
    assert ledger.inputs["right"].lacking == ledger.inputs["left"].dropped["missing"] > 0


def test_frames_are_joined_by_the_nearest_capture_time(ctx: tp.Context, free_stream_ids: StreamIds) -> None:
    camera, lidar = pair(ctx, free_stream_ids)
    inputs = {"camera": camera.stream_id, "lidar": lidar.stream_id}
    with ctx.join(inputs, by="time", tolerance="3ms", offset={"lidar": "1ms"}) as sets:
        assert sets.wait_for_producers(DEADLINE_S)
        ms = 1_000_000
        for number in range(1, 6):
            offer(lidar, number, timestamp_ns=number * 10 * ms + ms)
        offer(lidar, 6, timestamp_ns=80 * ms)
        for number in range(1, 6):
            offer(camera, number, timestamp_ns=number * 10 * ms + (5 * ms if number == 3 else ms))
        joined = [sets.receive(DEADLINE_S) for _ in range(4)]
        assert [(one["camera"].array[0], one["lidar"].array[0]) for one in joined] == [
            (1, 1),
            (2, 2),
            (4, 4),
            (5, 5),
        ]
        assert joined[0].timestamp_ns == 11 * ms
        ledger = sets.ledger()
        assert ledger.inputs["camera"].dropped["missing"] == 1
        assert ledger.balanced


def test_window_gives_all_frames_of_the_last_milliseconds(
    ctx: tp.Context, free_stream_ids: StreamIds
) -> None:
    camera, imu = pair(ctx, free_stream_ids)
    inputs = {"camera": camera.stream_id, "imu": imu.stream_id}
    ms = 1_000_000
    with ctx.join(inputs, by="time", window={"imu": 0.005}) as sets:
        assert sets.wait_for_producers(DEADLINE_S)
        for number in range(1, 31):
            offer(imu, number, timestamp_ns=number * ms)
        for number in (10, 20, 30):
            offer(camera, number, timestamp_ns=number * ms)
        for number in (10, 20, 30):
            joined = sets.receive(DEADLINE_S)
            assert [frame.array[0] for frame in joined["imu"]] == list(range(number - 5, number + 1))
            assert len(joined) == 7
            assert "imu=[" in repr(joined)


def test_newest_frames_follow_the_drive(ctx: tp.Context, free_stream_ids: StreamIds) -> None:
    slow, fast = pair(ctx, free_stream_ids)
    with ctx.join({"slow": slow.stream_id, "fast": fast.stream_id}, by="latest") as sets:
        assert sets.wait_for_producers(DEADLINE_S)
        for number in range(5):
            offer(fast, number)
        offer(slow, 0)
        joined = sets.receive(DEADLINE_S)
        assert (joined["slow"].array[0], joined["fast"].array[0]) == (0, 4)
        offer(fast, 5)
        assert sets.receive_or_none(0.05) is None
        offer(slow, 1)
        assert sets.receive(DEADLINE_S)["fast"].array[0] == 5
        ledger = sets.ledger()
        assert ledger.inputs["fast"].dropped["superseded"] == 4
        assert ledger.balanced


def test_clock_drives_the_newest_frames(ctx: tp.Context, free_stream_ids: StreamIds) -> None:
    left, right = pair(ctx, free_stream_ids)
    with ctx.join({"left": left.stream_id, "right": right.stream_id}, by="latest", drive=200.0) as sets:
        assert sets.wait_for_producers(DEADLINE_S)
        offer(left, 1)
        offer(right, 2)
        # The same frames again and again, until there are newer ones.
        assert [sets.receive(DEADLINE_S)["right"].array[0] for _ in range(3)] == [2, 2, 2]
        assert sets.ledger().inputs["left"].joined == 1


def test_clock_has_no_results_while_all_inputs_are_stale(ctx: tp.Context, free_stream_ids: StreamIds) -> None:
    left, right = pair(ctx, free_stream_ids)
    inputs = {"left": left.stream_id, "right": right.stream_id}
    ms = 1_000_000
    with ctx.join(inputs, by="time", tolerance="1ms", drive=100, stale_after="200ms") as sets:
        assert sets.wait_for_producers(DEADLINE_S)
        for number in range(1, 20):
            offer(left, number, timestamp_ns=number * 10 * ms)
            offer(right, number, timestamp_ns=number * 10 * ms)
        taken = [sets.receive(DEADLINE_S) for _ in range(19)]
        assert [joined.timestamp_ns for joined in taken] == [number * 10 * ms for number in range(1, 20)]
        # Longer than both may be away: a clock that continued would have results without frames.
        assert sets.receive_or_none(0.5) is None
        # Years later, one is back. The years between have no results either.
        later_ns = 10**18
        offer(left, 20, timestamp_ns=later_ns)
        joined = sets.receive(DEADLINE_S)
        assert (joined.timestamp_ns, joined.absent) == (later_ns, ("right",))
        assert sets.ledger().results == 20
        assert sets.ledger().missed_ticks > 10**10
        assert sets.ledger().balanced


def test_times_of_publication_are_joined_if_asked_for(ctx: tp.Context, free_stream_ids: StreamIds) -> None:
    options: Any = {"pools": ["4KiB"], "nslots": 64}
    left = ctx.producer(free_stream_ids(), publish_timestamps=True, **options)
    right = ctx.producer(free_stream_ids(), publish_timestamps=True, **options)
    silent = ctx.producer(free_stream_ids(), **options)
    inputs = {"left": left.stream_id, "right": right.stream_id}
    with (
        ctx.join(inputs, by="time", timestamp="publish", tolerance=DEADLINE_S) as pairs,
        ctx.join({"silent": silent.stream_id}, by="time", timestamp="publish") as none,
    ):
        assert pairs.wait_for_producers(DEADLINE_S)
        assert none.wait_for_producers(DEADLINE_S)
        begin_ns = time.monotonic_ns()
        # By capture these would be an hour apart, and the second would run backwards.
        for at_ns in (3600 * 10**9, 7):
            offer(left, 1, timestamp_ns=at_ns)
            offer(right, 2, timestamp_ns=0)
        offer(right, 3, timestamp_ns=0)
        for _ in range(2):
            joined = pairs.receive(DEADLINE_S)
            assert begin_ns <= (joined.timestamp_ns or 0) <= time.monotonic_ns()
        # Frames that have no time of publication are counted.
        offer(silent, 1, timestamp_ns=5)
        assert none.receive_or_none(0.2) is None
        assert none.ledger().inputs["silent"].dropped["no_timestamp"] == 1


def test_stale_input_is_absent_and_named(ctx: tp.Context, free_stream_ids: StreamIds) -> None:
    left, right = pair(ctx, free_stream_ids)
    with ctx.join({"left": left.stream_id, "right": right.stream_id}, stale_after="100ms") as pairs:
        assert pairs.wait_for_producers(DEADLINE_S)
        offer(left, 7)
        joined = pairs.receive(DEADLINE_S)
        assert joined.absent == ("right",)
        assert joined["right"] is None
        assert "right" not in joined
        assert pairs.ledger().inputs["right"].absent == 1


def test_timestamps_that_run_backwards_raise_once(ctx: tp.Context, free_stream_ids: StreamIds) -> None:
    left, right = pair(ctx, free_stream_ids)
    with ctx.join({"left": left.stream_id, "right": right.stream_id}, by="time", timeout=0.05) as pairs:
        assert pairs.wait_for_producers(DEADLINE_S)
        offer(right, 0, timestamp_ns=100)
        offer(right, 1, timestamp_ns=99)
        with pytest.raises(tp.JoinRejected, match=r"stream [0-9]+. ran backwards") as raised:
            pairs.receive(DEADLINE_S)
        assert (raised.value.reason, raised.value.stream_id) == ("backwards", right.stream_id)
        with pytest.raises(tp.ReceiveTimeout, match="no frames belong together"):
            next(pairs)
        assert pairs.ledger().inputs["right"].dropped["backwards"] == 1


def test_loop_waits_once_for_its_timeout(
    ctx: tp.Context, free_stream_ids: StreamIds, wait_until: WaitUntil
) -> None:
    left, right = pair(ctx, free_stream_ids)
    with ctx.join({"left": left.stream_id, "right": right.stream_id}, timeout=0.5) as pairs:
        assert pairs.wait_for_producers(DEADLINE_S)

        def has_waited_once() -> bool:
            offer(left, 0)
            offer(right, 0)
            results = iter(pairs)
            next(results)
            begin_s = time.monotonic()
            with pytest.raises(tp.ReceiveTimeout, match=r"within 0.5 s"):
                next(results)
            waited_s = time.monotonic() - begin_s
            assert waited_s >= 0.5
            # A busy machine may take longer now and then. A loop that waits twice always does.
            return waited_s < 0.95

        wait_until(has_waited_once, timeout=DEADLINE_S)


def test_absent_input_that_returns_is_joined_while_others_are_held_back(
    ctx: tp.Context, free_stream_ids: StreamIds
) -> None:
    left, right = pair(ctx, free_stream_ids)
    inputs = {"left": left.stream_id, "right": right.stream_id}
    with ctx.join(inputs, by="time", tolerance=1, stale_after=0.2) as pairs:
        assert pairs.wait_for_producers(DEADLINE_S)
        for number in range(20):
            offer(left, number, timestamp_ns=100 + number)
        # The first results come without the other input; the rest is held back.
        assert pairs.receive(DEADLINE_S).absent == ("right",)
        for number in range(20):
            offer(right, number, timestamp_ns=100 + number)
        assert pairs.receive(DEADLINE_S).absent == ()
        assert pairs.ledger().balanced


def test_poll_returns_what_was_joined_and_then_raises_a_rejection_once(
    ctx: tp.Context, free_stream_ids: StreamIds, wait_until: WaitUntil
) -> None:
    left, right = pair(ctx, free_stream_ids)
    with ctx.join({"left": left.stream_id, "right": right.stream_id}, by="time") as pairs:
        assert pairs.wait_for_producers(DEADLINE_S)
        for producer in (left, right):
            offer(producer, 0, timestamp_ns=100)
        offer(right, 1, timestamp_ns=99)
        joined = wait_until(pairs.poll, timeout=DEADLINE_S)
        assert [result.timestamp_ns for result in joined] == [100]
        with pytest.raises(tp.JoinRejected) as raised:
            wait_until(pairs.poll, timeout=DEADLINE_S)
        assert (raised.value.reason, raised.value.stream_id) == ("backwards", right.stream_id)
        assert pairs.poll() == []


def test_overwritten_frames_cost_their_result_and_a_late_use_raises(
    ctx: tp.Context, free_stream_ids: StreamIds
) -> None:
    left, right = pair(ctx, free_stream_ids, nslots=8)
    with ctx.join({"left": left.stream_id, "right": right.stream_id}) as pairs:
        assert pairs.wait_for_producers(DEADLINE_S)
        offer(left, 0)
        offer(right, 0)
        joined = pairs.receive(DEADLINE_S)
        for number in range(1, 9):
            offer(left, number)
        assert not joined.valid()
        with pytest.raises(tp.FrameOverwritten), joined:
            pass
        assert pairs.inputs["left"].ledger().dropped["late"] == 1
        assert pairs.ledger().balanced


def test_results_of_a_batch_are_one_array_for_each_input(ctx: tp.Context, free_stream_ids: StreamIds) -> None:
    left, right = pair(ctx, free_stream_ids, nslots=16)
    with ctx.join({"left": left.stream_id, "right": right.stream_id}) as pairs:
        assert pairs.wait_for_producers(DEADLINE_S)
        assert pairs.poll_batch() is None
        taken: list[tuple[int, int, int]] = []
        for first in range(0, 48, 12):
            for number in range(first, first + 12):
                offer(left, number)
                offer(right, 100 + number)
            end = first + 12
            while not taken or taken[-1][0] < end - 1:
                with pairs.take(5, DEADLINE_S) as batch:
                    assert 1 <= len(batch) <= 5
                    assert batch["left"].shape == (len(batch), 16)
                    assert not batch["left"].flags.writeable
                    assert not batch["right"].flags.owndata
                    assert (batch["left"] == batch["left"][:, :1]).all()
                    assert batch.seqs is not None
                    assert batch.seqs.tolist() == batch.seqs_of("right").tolist()
                    taken += zip(batch.seqs, batch["left"][:, 3], batch["right"][:, 7], strict=True)
                assert batch.valid()
        assert taken == [(number, number, 100 + number) for number in range(48)]
        assert (batch.names, batch.absent, batch.timestamps_ns) == (("left", "right"), (), None)
        with pytest.raises(KeyError, match="the inputs are left, right"):
            batch["centre"]
        ledger = pairs.ledger()
        assert (ledger.results, ledger.balanced) == (48, True)
    with pytest.raises(tp.ReceiveTimeout, match="closed"):
        pairs.take(5, 0.1)


def test_batch_ends_at_a_gap_and_another_layout_and_loses_nothing(
    ctx: tp.Context, free_stream_ids: StreamIds
) -> None:
    left, right = pair(ctx, free_stream_ids)
    with ctx.join({"left": left.stream_id, "right": right.stream_id}) as pairs:
        assert pairs.wait_for_producers(DEADLINE_S)
        for number in range(6):
            offer(left, number)
        left.offer(np.zeros(3))
        offer(left, 7)
        with right.claim((16,), "int64") as slot:
            slot.array[:] = 0
        for number in range(1, 8):
            offer(right, number)
        sizes: list[int] = []
        seqs: list[int] = []
        while len(seqs) < 8:
            batch = pairs.take(64, DEADLINE_S)
            sizes.append(len(batch))
            seqs += batch.seqs_of("left").tolist()
        assert seqs == list(range(8))
        # The frame of another layout is a batch of its own; those around it may come in several polls.
        assert 1 in sizes
        assert len(sizes) >= 3
        # Single results and batches share one order.
        offer(left, 8)
        offer(right, 8)
        assert pairs.receive(DEADLINE_S).seq == 8


def test_batch_of_overwritten_frames_raises_and_counts_each_once(
    ctx: tp.Context, free_stream_ids: StreamIds
) -> None:
    left, right = pair(ctx, free_stream_ids, nslots=8)
    with ctx.join({"left": left.stream_id, "right": right.stream_id}) as pairs:
        assert pairs.wait_for_producers(DEADLINE_S)
        for number in range(4):
            offer(left, number)
            offer(right, number)
        batch = pairs.take(4, DEADLINE_S)
        assert len(batch) == 4
        for number in range(4, 10):
            offer(left, number)
        assert not batch.valid()
        with pytest.raises(tp.FrameOverwritten, match="frame 0 of stream"), batch:
            pass
        assert pairs.inputs["left"].ledger().dropped["late"] == 2
        assert pairs.inputs["right"].ledger().dropped["late"] == 0


def test_windows_do_not_form_batches(ctx: tp.Context, free_stream_ids: StreamIds) -> None:
    left, right = pair(ctx, free_stream_ids)
    inputs = {"left": left.stream_id, "right": right.stream_id}
    with ctx.join(inputs, by="time", window={"right": "5ms"}) as fused:
        with pytest.raises(tp.ConfigError, match="windows"):
            fused.poll_batch()
        with pytest.raises(tp.ConfigError, match="1 or more"):
            fused.take(0)


def test_parents_of_a_result_give_its_lineage(ctx: tp.Context, free_stream_ids: StreamIds) -> None:
    options: Any = {"pools": ["4KiB"], "traces": True}
    left, right, out = (ctx.producer(free_stream_ids(), **options) for _ in range(3))
    with (
        ctx.join({"left": left.stream_id, "right": right.stream_id}) as pairs,
        ctx.consumer(out.stream_id) as results,
    ):
        assert pairs.wait_for_producers(DEADLINE_S)
        assert results.wait_for_producer(DEADLINE_S)
        offer(left, 1)
        offer(right, 2)
        with pairs.receive(DEADLINE_S) as joined:
            assert out.offer(joined["left"].array - joined["right"].array, parents=joined)
        result = results.receive(DEADLINE_S)
        assert result.array[0] == -1
        assert result.trace_id not in (None, *(frame.trace_id for frame in joined))


def test_async_for_yields_results(ctx: tp.Context, free_stream_ids: StreamIds) -> None:
    left, right = pair(ctx, free_stream_ids)

    async def collect(pairs: tp.Join) -> list[int]:
        seqs = []
        async for joined in pairs:
            seqs.append(joined["right"].seq)
            if len(seqs) == 5:
                return seqs
            offer(left, 0)
            offer(right, 0)
        return seqs

    with ctx.join({"left": left.stream_id, "right": right.stream_id}, timeout=DEADLINE_S) as pairs:
        assert pairs.wait_for_producers(DEADLINE_S)
        offer(left, 0)
        offer(right, 0)
        assert asyncio.run(collect(pairs)) == [0, 1, 2, 3, 4]


def test_result_of_a_cancelled_task_is_the_next_one_of_a_batch(
    ctx: tp.Context, free_stream_ids: StreamIds
) -> None:
    left, right = pair(ctx, free_stream_ids)

    async def cancel_after_a_result(pairs: tp.Join) -> list[int]:
        task = asyncio.ensure_future(anext(pairs))
        offered = False
        while not task.done():
            # The thread that waits for the task has the result before the task runs again.
            deadline = time.monotonic() + 1
            while pairs.ledger().results == 0 and time.monotonic() < deadline:
                if not offered and any(each.name.startswith("tp-join") for each in threading.enumerate()):
                    offer(left, 0)
                    offer(right, 0)
                    offered = True
            if pairs.ledger().results:
                task.cancel()
            await asyncio.sleep(0)
        return [] if task.cancelled() else [task.result().seq or 0]

    with ctx.join({"left": left.stream_id, "right": right.stream_id}, timeout=DEADLINE_S) as pairs:
        assert pairs.wait_for_producers(DEADLINE_S)
        taken = asyncio.run(cancel_after_a_result(pairs))
        for number in range(1, 4):
            offer(left, number)
            offer(right, number)
        with pairs.take(4, timeout=DEADLINE_S) as batch:
            assert batch.seqs is not None
            assert taken + batch.seqs.tolist() == [0, 1, 2, 3]
        assert pairs.poll() == []
        assert pairs.ledger().results == 4


def test_input_that_restarts_is_joined_again(ctx: tp.Context, free_stream_ids: StreamIds) -> None:
    left, right = pair(ctx, free_stream_ids)
    with ctx.join({"left": left.stream_id, "right": right.stream_id}, by="time", tolerance=1.0) as pairs:
        assert pairs.wait_for_producers(DEADLINE_S)
        offer(left, 0)
        offer(right, 0)
        offer(right, 1)
        assert pairs.receive(DEADLINE_S)["right"].array[0] == 0
        stream_id, epoch = right.stream_id, right.epoch
        right.close()
        with ctx.producer(stream_id, pools=["4KiB"], nslots=64) as again:
            again.wait_for_consumer(DEADLINE_S)
            consumer = pairs.inputs["right"]
            joined = None
            while joined is None or joined["right"].epoch == epoch:
                offer(left, 5)
                again.offer(np.full(16, 6, np.int64))
                joined = pairs.receive_or_none(0.05)
            assert consumer.epoch == again.epoch
            assert pairs.ledger().balanced


def test_many_inputs_hold_no_more_memory_than_their_depth(
    ctx: tp.Context, free_stream_ids: StreamIds
) -> None:
    producers = [ctx.producer(free_stream_ids(), pools=["4KiB"], nslots=64) for _ in range(8)]
    inputs = {f"input-{number}": producer.stream_id for number, producer in enumerate(producers)}
    with ctx.join(inputs, by="time", tolerance="1ms", depth=16) as sets:
        assert sets.wait_for_producers(DEADLINE_S)
        for number in range(1, 300):
            # The last one stops: all others are held back, up to the depth.
            for producer in producers[: 8 if number < 100 else 7]:
                producer.offer(np.zeros(8, np.int64), timestamp_ns=number * 10_000_000)
            gc.collect(0)
            sets.poll()
        ledger = sets.ledger()
        assert ledger.results == 99
        assert ledger.balanced
        assert all(each.pending <= 16 for each in ledger.inputs.values())
        assert ledger.inputs["input-0"].dropped["overflow"] > 100


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": "colour"}, 'by="sequence"'),
        ({"tolerance": 1}, 'only with by="time"'),
        ({"offset": {"centre": 1}}, "the inputs are left, right"),
        ({"offset": {"right": 0.5}}, "whole number of sequences"),
        ({"window": {"right": 0}}, "1 or more"),
        ({"offset": {"right": 1}, "window": {"right": 2}}, "give one of them"),
        ({"drive": "centre"}, "name of an input"),
        ({"drive": 30}, "driven by an input"),
        ({"by": "time", "tolerance": "5 parsecs"}, "5ms"),
        ({"by": "time", "timestamp": "arrival"}, "capture"),
        ({"by": "latest", "window": {"right": 2}}, 'only with by="sequence"'),
        ({"depth": 0}, "depth"),
    ],
)
def test_faulty_rules_name_a_valid_form(ctx: tp.Context, options: dict[str, Any], message: str) -> None:
    with pytest.raises(tp.ConfigError, match=message):
        ctx.join({"left": 40_001, "right": 40_002}, **options)
    with pytest.raises(tp.ConfigError, match="1 to 64"):
        ctx.join({})
