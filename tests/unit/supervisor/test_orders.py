"""Orders: said until they are heeded, said anew in a new epoch, and never on a stream that somebody has."""

from __future__ import annotations

from dataclasses import replace

from tensorpool.monitor.snapshot import Snapshot
from tensorpool.sbe.wire import ConsumerConfig, ConsumerConfigR2, Mode
from tensorpool.supervisor.orders import MANUAL, Orders
from tensorpool.supervisor.policy import Decision
from tests.unit.supervisor.test_policy import S, consumer, system

IDS = (31_000, 31_003)
URI = "bridge://1?stream=5"


def limit(by: str = "rule") -> Decision:
    return Decision("limit", by, 5, 7, "why", max_rate_hz=4)


def test_a_limit_is_said_until_the_consumer_reports_it_and_again_in_a_new_epoch() -> None:
    orders = Orders("aeron:ipc", IDS)
    free = system(consumer(0))
    assert orders.take(limit(), free) == []
    [said] = orders.due(free, 0)
    assert isinstance(said, ConsumerConfigR2)
    assert (said.mode, said.max_rate_hz, said.use_shm) == (Mode.RATE_LIMITED, 4, True)
    assert IDS[0] <= said.descriptor_stream_id <= IDS[1]
    assert list(orders.due(free, S)) == []
    assert len(list(orders.due(free, 3 * S))) == 1
    heeded = consumer(0, mode="rate_limited", own_stream_id=said.descriptor_stream_id)
    assert list(orders.due(system(heeded), 60 * S)) == []
    [again] = orders.due(system(replace(heeded, epoch=2)), 61 * S)
    assert isinstance(again, ConsumerConfigR2)


def test_a_release_keeps_the_stream_and_gives_back_the_wish() -> None:
    orders = Orders("aeron:ipc", IDS)
    limited = consumer(0, mode="rate_limited", own_stream_id=31_002)
    orders.take(limit(), system(limited))
    [said] = orders.take(Decision("release", "rule", 5, 7, "over"), system(limited))
    assert isinstance(said, ConsumerConfig)
    assert (said.mode, said.descriptor_stream_id, said.use_shm) == (Mode.STREAM, 31_002, True)
    assert list(orders.due(system(limited), S)) == []
    [said] = orders.take(
        Decision("release", "rule", 5, 7, "over"), system(replace(limited, wants_limit=True))
    )
    assert said.mode is Mode.RATE_LIMITED


def test_a_redirect_names_the_way_and_manual_ones_are_known() -> None:
    orders = Orders("aeron:ipc", IDS)
    orders.take(Decision("redirect", MANUAL, 5, 7, "why", fallback_uri=URI), system(consumer(0)))
    assert orders.manual == {(5, 7)}
    [said] = orders.due(system(consumer(0)), 0)
    assert (said.use_shm, said.payload_fallback_uri) == (False, URI)
    # Who has left takes its orders along.
    assert list(orders.due(Snapshot(0), S)) == []
    assert orders.manual == frozenset()


def test_streams_that_somebody_has_are_not_named() -> None:
    orders = Orders("aeron:ipc", IDS)
    others = [consumer(0, consumer_id=n, own_stream_id=31_000 + n) for n in (0, 1, 3)]
    snapshot = system(consumer(0), *others)
    orders.take(limit(), snapshot)
    [said] = orders.due(snapshot, 0)
    assert said.descriptor_stream_id == 31_002


def test_what_concerns_a_stream_is_no_order() -> None:
    orders = Orders("aeron:ipc", IDS)
    for action, whom in (("flag", None), ("flag", 7), ("unflag", 7), ("reconfigure", 7)):
        assert orders.take(Decision(action, "rule", 5, whom, "why"), system(consumer(0))) == []  # type: ignore[arg-type]
    assert list(orders.due(system(consumer(0)), 0)) == []


def test_who_has_a_stream_already_keeps_it_and_who_was_declined_is_named_another() -> None:
    orders = Orders("aeron:ipc", IDS)
    has_one = system(consumer(0, own_stream_id=31_001))
    orders.take(limit(), has_one)
    [said] = orders.due(has_one, 0)
    assert said.descriptor_stream_id == 31_001
    # It was said, and nothing came of it: somebody else has that stream, whom nobody knows here.
    free = system(consumer(0))
    declined = Orders("aeron:ipc", IDS)
    declined.take(limit(), free)
    named = {
        said.descriptor_stream_id for second in range(0, 120, 3) for said in declined.due(free, second * S)
    }
    assert len(named) > 1
    assert named <= set(range(IDS[0], IDS[1] + 1))
