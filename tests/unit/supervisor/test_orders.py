"""Orders: repeated until they are in force and in each new epoch, on descriptor streams that are free."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tensorpool.errors import InvalidConfig
from tensorpool.monitor.snapshot import Snapshot
from tensorpool.runtime.config import Config
from tensorpool.sbe.wire import ConsumerConfigR2, Mode
from tensorpool.supervisor.config import SupervisorSettings
from tensorpool.supervisor.orders import MANUAL, Orders
from tensorpool.supervisor.policy import Decision
from tests.unit.supervisor.test_policy import S, consumer, system

IDS = (31_000, 31_003)
URI = (
    "bridge://1?payload=aeron%3Audp%3Fendpoint%3D10.0.0.2%3A40100&payload_stream=3000"
    "&control=aeron%3Audp%3Fendpoint%3D10.0.0.2%3A40101&control_stream=3001&stream=5"
)


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
    assert isinstance(config, ConsumerConfigR2)
    assert (config.mode, config.descriptor_stream_id, config.use_shm) == (Mode.STREAM, 31_002, True)
    # Without a rate it would be the answer of a producer that grants no stream.
    assert config.max_rate_hz == 0
    assert list(orders.due(system(limited), S)) == []
    [config] = orders.apply(
        Decision("release", "rule", 5, 7, "low"), system(replace(limited, requested_limit=True))
    )
    assert isinstance(config, ConsumerConfigR2)
    assert (config.mode, config.max_rate_hz) == (Mode.RATE_LIMITED, None)


def test_limit_that_the_consumer_keeps_itself_is_proposed_again() -> None:
    orders = Orders("aeron:ipc", IDS)
    gated = system(consumer(0, mode="rate_limited"))
    orders.apply(limit(), gated)
    [first] = orders.due(gated, 0)
    assert list(orders.due(gated, S)) == []
    [second] = orders.due(gated, 3 * S)
    assert first.descriptor_stream_id != second.descriptor_stream_id


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


@pytest.mark.requirement("wire-10.1.3-1")
@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        (URI, None),
        ("aeron:udp?endpoint=10.0.0.2:40100", "use bridge://<id>"),
        ("bridge://1?stream=5", "payload, payload_stream, control, control_stream is missing"),
        (URI.replace("3001", "none"), "control_stream"),
    ],
)
def test_rule_needs_a_fallback_that_a_consumer_can_read(uri: str, reason: str | None) -> None:
    rule = {"name": "slow", "when": "drops", "above": 1, "then": "redirect", "fallback_uri": uri}
    tables: dict[str, Any] = {"supervisor": {"rules": [rule]}}
    if reason is None:
        [loaded] = Config.load(SupervisorSettings, tables=tables, environ={})[SupervisorSettings].rules
        assert loaded.fallback_uri == uri
        return
    with pytest.raises(InvalidConfig) as invalid:
        Config.load(SupervisorSettings, tables=tables, environ={})
    assert reason in str(invalid.value)
