"""Orders: repeated until they are in force and in each new epoch, on descriptor streams that are free."""

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


def test_limit_is_repeated_until_reported_and_in_each_new_epoch() -> None:
    orders = Orders("aeron:ipc", IDS)
    free = system(consumer(0))
    assert orders.apply(limit(), free) == []
    [config] = orders.due(free, 0)
    assert isinstance(config, ConsumerConfigR2)
    assert (config.mode, config.max_rate_hz, config.use_shm) == (Mode.RATE_LIMITED, 4, True)
    assert IDS[0] <= config.descriptor_stream_id <= IDS[1]
    assert list(orders.due(free, S)) == []
    assert len(list(orders.due(free, 3 * S))) == 1
    limited = consumer(0, mode="rate_limited", per_consumer_stream_id=config.descriptor_stream_id)
    assert list(orders.due(system(limited), 60 * S)) == []
    [repeated] = orders.due(system(replace(limited, epoch=2)), 61 * S)
    assert isinstance(repeated, ConsumerConfigR2)


def test_release_keeps_the_stream_and_restores_the_request() -> None:
    orders = Orders("aeron:ipc", IDS)
    limited = consumer(0, mode="rate_limited", per_consumer_stream_id=31_002)
    orders.apply(limit(), system(limited))
    [config] = orders.apply(Decision("release", "rule", 5, 7, "low"), system(limited))
    assert isinstance(config, ConsumerConfig)
    assert (config.mode, config.descriptor_stream_id, config.use_shm) == (Mode.STREAM, 31_002, True)
    assert list(orders.due(system(limited), S)) == []
    [config] = orders.apply(
        Decision("release", "rule", 5, 7, "low"), system(replace(limited, requested_limit=True))
    )
    assert config.mode is Mode.RATE_LIMITED


def test_redirect_sends_the_uri_and_ends_with_the_consumer() -> None:
    orders = Orders("aeron:ipc", IDS)
    orders.apply(Decision("redirect", MANUAL, 5, 7, "why", fallback_uri=URI), system(consumer(0)))
    assert orders.manual == {(5, 7)}
    [config] = orders.due(system(consumer(0)), 0)
    assert (config.use_shm, config.payload_fallback_uri) == (False, URI)
    # The order ends when its consumer leaves.
    assert list(orders.due(Snapshot(0), S)) == []
    assert orders.manual == frozenset()


def test_limit_does_not_use_descriptor_streams_of_others() -> None:
    orders = Orders("aeron:ipc", IDS)
    others = [consumer(0, consumer_id=n, per_consumer_stream_id=31_000 + n) for n in (0, 1, 3)]
    snapshot = system(consumer(0), *others)
    orders.apply(limit(), snapshot)
    [config] = orders.due(snapshot, 0)
    assert config.descriptor_stream_id == 31_002


def test_decisions_about_streams_and_services_are_no_orders() -> None:
    orders = Orders("aeron:ipc", IDS)
    for action, consumer_id in (("flag", None), ("flag", 7), ("unflag", 7), ("reconfigure", 7)):
        decision = Decision(action, "rule", 5, consumer_id, "why")  # type: ignore[arg-type]
        assert orders.apply(decision, system(consumer(0))) == []
    assert list(orders.due(system(consumer(0)), 0)) == []


def test_limit_keeps_a_granted_stream_and_replaces_a_declined_one() -> None:
    orders = Orders("aeron:ipc", IDS)
    granted = system(consumer(0, per_consumer_stream_id=31_001))
    orders.apply(limit(), granted)
    [config] = orders.due(granted, 0)
    assert config.descriptor_stream_id == 31_001
    # The producer declined: a consumer that the supervisor does not know uses the stream.
    free = system(consumer(0))
    declined = Orders("aeron:ipc", IDS)
    declined.apply(limit(), free)
    proposed = {
        config.descriptor_stream_id
        for second in range(0, 120, 3)
        for config in declined.due(free, second * S)
    }
    assert len(proposed) > 1
    assert proposed <= set(range(IDS[0], IDS[1] + 1))
