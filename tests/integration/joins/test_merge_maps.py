"""Merge maps on the wire: announced by the owner of an output stream, and joined by (schema 903)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tensorpool.client.join import InputRule, JoinOptions
from tensorpool.client.merge_map import MergeMapState, decode_merge_message
from tensorpool.sbe import (
    ClockDomain,
    SequenceMergeMapAnnounce,
    SequenceMergeMapRequest,
    SequenceRule,
    SequenceRuleType,
    TimestampMergeMapAnnounce,
    TimestampMergeMapRequest,
    TimestampRule,
    TimestampRuleType,
    TimestampSource,
)

DEADLINE_S = 60
StreamIds = Callable[[], int]
OFFSET, WINDOW = SequenceRuleType.OFFSET, SequenceRuleType.WINDOW


def sequence_map(out: int, epoch: int, *rules: SequenceRule, **fields: Any) -> SequenceMergeMapAnnounce:
    return SequenceMergeMapAnnounce(out_stream_id=out, epoch=epoch, rules=rules, **fields)


def offset_rule(stream_id: int, offset: int | None = 0, **fields: Any) -> SequenceRule:
    return SequenceRule(input_stream_id=stream_id, rule_type=OFFSET, offset=offset, **fields)


def test_maps_survive_the_wire() -> None:
    by_sequence = tp.MergeMap.from_streams(
        {"a": 1, "b": 2}, JoinOptions(window={"b": 3}, stale_after="2s")
    ).announce(9, 5)
    assert by_sequence == sequence_map(
        9,
        5,
        offset_rule(1),
        SequenceRule(input_stream_id=2, rule_type=WINDOW, window_size=3),
        stale_timeout_ns=2_000_000_000,
    )
    by_time = tp.MergeMap.from_streams(
        {"a": 1, "b": 2},
        JoinOptions(by="time", offset={"a": -0.001}, window={"b": "1ms"}, lateness=1e-6, timestamp="publish"),
    )
    announce = by_time.announce(9, 5)
    assert announce == TimestampMergeMapAnnounce(
        out_stream_id=9,
        epoch=5,
        clock_domain=ClockDomain.MONOTONIC,
        lateness_ns=1000,
        rules=(
            TimestampRule(
                input_stream_id=1,
                rule_type=TimestampRuleType.OFFSET_NS,
                timestamp_source=TimestampSource.FRAME_DESCRIPTOR,
                offset_ns=-1_000_000,
            ),
            TimestampRule(
                input_stream_id=2,
                rule_type=TimestampRuleType.WINDOW_NS,
                timestamp_source=TimestampSource.FRAME_DESCRIPTOR,
                window_ns=1_000_000,
            ),
        ),
    )
    decoded = decode_merge_message(announce.encode())
    assert isinstance(decoded, TimestampMergeMapAnnounce)
    rules = tp.MergeMap.from_announce(decoded).join_rules({1: "x", 2: "y"}, JoinOptions(tolerance=0.5))
    assert rules.inputs == (InputRule("x", -1_000_000, None, True), InputRule("y", 0, 1_000_000, True))
    assert (rules.by, rules.tolerance_ns, rules.lateness_ns) == ("time", 500_000_000, 1000)
    assert rules.clock_domain == "monotonic"


@pytest.mark.parametrize(
    "rules",
    [
        (),
        (offset_rule(1), offset_rule(1)),
        (offset_rule(1, None),),
        (offset_rule(1, 0, window_size=2),),
        (SequenceRule(input_stream_id=1, rule_type=WINDOW, window_size=0),),
        (SequenceRule(input_stream_id=1, rule_type=WINDOW),),
        (SequenceRule(input_stream_id=1, rule_type=WINDOW, offset=3),),
        (offset_rule(0),),
        tuple(map(offset_rule, range(1, 66))),
    ],
)
def test_invalid_map_is_rejected_until_another_replaces_it(rules: tuple[SequenceRule, ...]) -> None:
    state = MergeMapState(9, 0.1)
    state.on_epoch(5)
    state.on_announce(sequence_map(9, 5, *rules))
    assert state.merge_map is None
    assert state.rejected is not None
    assert state.rejected.reason == "merge_map"
    state.on_announce(sequence_map(9, 5, offset_rule(1)))
    assert state.merge_map is not None
    assert state.rejected is None


def test_map_of_another_stream_or_epoch_is_not_used() -> None:
    state = MergeMapState(9, 0.1)
    state.on_announce(sequence_map(9, 5, offset_rule(1)))
    assert (state.merge_map, state.requests(0.0)) == (None, [])
    state.on_epoch(5)
    assert state.requests(0.0) == [
        SequenceMergeMapRequest(out_stream_id=9, epoch=5),
        TimestampMergeMapRequest(out_stream_id=9, epoch=5),
    ]
    assert state.requests(0.05) == []
    for announce in (sequence_map(9, 4, offset_rule(1)), sequence_map(8, 5, offset_rule(1))):
        state.on_announce(announce)
        assert state.merge_map is None
    state.on_announce(sequence_map(9, 5, offset_rule(1)))
    before = state.changes
    state.on_announce(sequence_map(9, 5, offset_rule(1)))
    assert (state.changes, state.requests(9.0)) == (before, [])
    # Another epoch of the output needs a map of its own.
    state.on_epoch(6)
    assert state.merge_map is None
    assert len(state.requests(9.0)) == 2


def test_latest_join_has_no_map(ctx: tp.Context, free_stream_ids: StreamIds) -> None:
    with (
        ctx.join({"left": free_stream_ids(), "right": free_stream_ids()}, by="latest") as sets,
        pytest.raises(tp.ConfigError, match='by="latest" has none'),
    ):
        tp.MergeMap.from_join(sets)


def test_stage_joins_by_the_map_of_the_output_stream(
    ctx: tp.Context, free_stream_ids: StreamIds, wait_until: Callable[..., Any]
) -> None:
    left, right = (ctx.producer(free_stream_ids(), pools=["4KiB"], nslots=64) for _ in range(2))
    out_id = free_stream_ids()
    with ctx.join({"left": left.stream_id}, out_stream=out_id) as sets:
        assert sets.receive_or_none(0.05) is None
        assert sets.poll() == []
        with pytest.raises(tp.ReceiveTimeout, match="was not announced"):
            sets.receive(0.0)
        streams = {"left": left.stream_id, "right": right.stream_id}
        merge_map = tp.MergeMap.from_streams(streams, JoinOptions(offset={"right": 1}))
        with ctx.producer(out_id, pools=["4KiB"], merge_map=merge_map) as out:
            assert sets.wait_for_map(DEADLINE_S)
            assert sets.merge_map is not None
            wait_until(lambda: all(each.epoch is not None for each in sets.inputs.values()))
            for number in range(3):
                left.offer(np.full(4, number))
                right.offer(np.full(4, number))
            joined = sets.receive(DEADLINE_S)
            assert (joined["left"].seq, joined[str(right.stream_id)].seq) == (0, 1)
            assert [each["left"].seq for each in wait_until(sets.poll)] == [1]
            # Another map of the same epoch: the join starts again, with its rules.
            changed = tp.MergeMap.from_streams(streams, JoinOptions())
            ctx.announce_merge_map(out, changed)
            wait_until(lambda: sets.wait_for_map(1.0) and sets.merge_map == _unnamed(changed))
            wait_until(lambda: all(each.epoch is not None for each in sets.inputs.values()))
            seen = None
            while seen is None:
                left.offer(np.zeros(4))
                right.offer(np.zeros(4))
                seen = sets.receive_or_none(0.05)
            assert seen["left"].seq == seen[str(right.stream_id)].seq
            assert sets.ledger().balanced


def test_async_for_follows_the_map_of_the_output_stream(ctx: tp.Context, free_stream_ids: StreamIds) -> None:
    left, right = (ctx.producer(free_stream_ids(), pools=["4KiB"], nslots=64) for _ in range(2))
    streams = {"left": left.stream_id, "right": right.stream_id}
    out_id = free_stream_ids()

    async def collect(sets: tp.MergeMapJoin) -> list[tuple[int, int]]:
        seqs: list[tuple[int, int]] = []
        offering = asyncio.create_task(offer())
        async for joined in sets:
            seqs.append((joined["left"].seq, joined["right"].seq))
            if len(seqs) == 3:
                break
        offering.cancel()
        return seqs

    async def offer() -> None:
        # The first frames come before the consumers of the map are open.
        while True:
            left.offer(np.zeros(4))
            right.offer(np.zeros(4))
            await asyncio.sleep(0.01)

    with (
        ctx.producer(out_id, pools=["4KiB"], merge_map=tp.MergeMap.from_streams(streams, JoinOptions())),
        ctx.join(streams, out_stream=out_id, timeout=DEADLINE_S) as sets,
    ):
        seqs = asyncio.run(collect(sets))
    assert [left_seq for left_seq, _ in seqs] == [right_seq for _, right_seq in seqs]
    assert seqs == sorted(seqs)
    assert sets.closed


def _unnamed(merge_map: tp.MergeMap) -> tp.MergeMap:
    """The map as it is received: its inputs have no names on the wire."""
    return tp.MergeMap.from_announce(merge_map.announce(1, 1))


def test_invalid_map_on_the_wire_is_raised(ctx: tp.Context, free_stream_ids: StreamIds) -> None:
    with ctx.producer(free_stream_ids(), pools=["4KiB"]) as out:
        control = ctx.connection.publication(ctx.stream_ids.control_address)
        ctx.connection.wait_ready(control)
        with ctx.join(out_stream=out) as sets:
            invalid = sequence_map(out.stream_id, out.epoch or 0)

            def receive_until_rejected() -> None:
                while True:
                    control.offer(invalid.encode())
                    sets.receive_or_none(0.05)

            with pytest.raises(tp.JoinRejected, match="no rules"):
                receive_until_rejected()
            assert sets.receive_or_none(0.05) is None
        control.close()
    with pytest.raises(tp.ConfigError, match="name the streams"):
        ctx.join()  # type: ignore[call-overload]


def test_map_of_another_clock_is_rejected(ctx: tp.Context, free_stream_ids: StreamIds) -> None:
    source = ctx.producer(free_stream_ids(), pools=["4KiB"], nslots=64)
    by_time = tp.MergeMap.from_streams({"source": source.stream_id}, JoinOptions(by="time"))
    wall = tp.MergeMap("time", by_time.inputs, clock_domain=ClockDomain.REALTIME_SYNCED)
    with (
        ctx.producer(free_stream_ids(), pools=["4KiB"], merge_map=wall) as out,
        ctx.join(out_stream=out) as sets,
    ):

        def receive_until_rejected() -> None:
            while True:
                source.offer(np.zeros(4))
                assert sets.receive_or_none(0.05) is None

        with pytest.raises(tp.JoinRejected) as raised:
            receive_until_rejected()
    assert (raised.value.reason, raised.value.stream_id) == ("clock_domain", source.stream_id)


def test_timestamps_that_run_backwards_are_rejected_under_a_map(
    ctx: tp.Context, free_stream_ids: StreamIds, wait_until: Callable[..., Any]
) -> None:
    source = ctx.producer(free_stream_ids(), pools=["4KiB"], nslots=64)
    by_time = tp.MergeMap.from_streams({"source": source.stream_id}, JoinOptions(by="time"))
    with (
        ctx.producer(free_stream_ids(), pools=["4KiB"], merge_map=by_time) as out,
        ctx.join({"source": source.stream_id}, out_stream=out) as sets,
    ):
        assert sets.wait_for_map(DEADLINE_S)
        times_ns = iter(range(10**6, 10**9))

        def joined() -> bool:
            source.offer(np.zeros(4), timestamp_ns=next(times_ns))
            return bool(sets.poll())

        wait_until(joined, timeout=DEADLINE_S)
        source.offer(np.zeros(4), timestamp_ns=10)
        with pytest.raises(tp.JoinRejected) as raised:
            sets.receive(DEADLINE_S)
        assert (raised.value.reason, raised.value.stream_id) == ("backwards", source.stream_id)


def test_next_epoch_of_the_output_needs_a_map_of_its_own(
    ctx: tp.Context, free_stream_ids: StreamIds, wait_until: Callable[..., Any]
) -> None:
    left, right = (ctx.producer(free_stream_ids(), pools=["4KiB"], nslots=64) for _ in range(2))
    streams = {"left": left.stream_id, "right": right.stream_id}
    merge_map = tp.MergeMap.from_streams(streams, JoinOptions())
    out_id = free_stream_ids()
    with ctx.join(streams, out_stream=out_id) as sets:

        def joined() -> bool:
            left.offer(np.zeros(4))
            right.offer(np.zeros(4))
            return bool(sets.poll())

        with ctx.producer(out_id, pools=["4KiB"], merge_map=merge_map):
            wait_until(joined, timeout=DEADLINE_S)
        results = sets.ledger().results
        with ctx.producer(out_id, pools=["4KiB"]) as out:
            # The map of the epoch before no longer counts, and there is no other one yet.
            wait_until(lambda: not joined() and sets.merge_map is None, timeout=DEADLINE_S)
            before = sets.ledger().results
            assert before >= results
            for _ in range(20):
                assert not joined()
            with pytest.raises(tp.ReceiveTimeout, match="no program announces a merge map"):
                sets.receive(0.1)
            ctx.announce_merge_map(out, merge_map)
            wait_until(joined, timeout=DEADLINE_S)
            assert sets.ledger().results > before
        assert sets.ledger().balanced
