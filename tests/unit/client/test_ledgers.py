"""Ledgers of producers and consumers: counts by reason, and whether they add up (decision 47)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tensorpool import _native
from tensorpool.client import ConsumerLedger, ProducerLedger

PRODUCER = {
    "committed": 100,
    "published": 90,
    "back_pressured": 4,
    "not_connected": 3,
    "closed": 3,
    "no_pool": 7,
    "slot_claimed": 2,
    "detached": 3,
    "abandoned": 5,
    "after_close": 1,
    "holes": 1,
    "bytes": 4096,
}


def consumer(span: int, received: int, **drops: int) -> ConsumerLedger:
    by_reason = {reason.name: 0 for reason in _native.drop_reasons()} | drops
    counters: Any = SimpleNamespace(span=span, received=received, drops=by_reason)
    return ConsumerLedger.from_counters(counters)


def producer(**changes: int) -> ProducerLedger:
    counters: Any = SimpleNamespace(**(PRODUCER | changes))
    return ProducerLedger.from_counters(counters)


def test_committed_frames_are_published_or_not_by_reason() -> None:
    ledger = producer()
    assert ledger.unpublished == {"back_pressured": 4, "not_connected": 3, "closed": 3}
    assert ledger.dropped == {
        "no_pool": 7,
        "slot_claimed": 2,
        "detached": 3,
        "abandoned": 5,
        "after_close": 1,
    }
    assert (ledger.deferred, ledger.balanced) == (0, True)


def test_frames_behind_an_open_claim_are_deferred() -> None:
    ledger = producer(published=88)
    assert (ledger.deferred, ledger.balanced) == (2, False)


def test_span_of_a_consumer_is_received_plus_dropped() -> None:
    assert consumer(10, 7, gap=2, late=1).balanced
    assert not consumer(10, 7, gap=2).balanced
    assert not consumer(10, 7, gap=2, late=2).balanced


def test_descriptors_of_no_mapped_epoch_are_outside_every_span() -> None:
    outside = {
        "epoch": 5, "unmapped": 4, "before_joining": 6, "duplicate": 3, "regressed": 2, "malformed": 1,
    }  # fmt: skip
    ledger = consumer(1, 1, **outside)
    assert ledger.balanced
    assert ledger.outside == outside
    assert not ledger.outside.keys() & ledger.dropped.keys()


def test_every_drop_reason_is_inside_or_outside_the_span() -> None:
    ledger = consumer(0, 0)
    assert ledger.outside.keys() | ledger.dropped.keys() == {reason.name for reason in _native.drop_reasons()}
