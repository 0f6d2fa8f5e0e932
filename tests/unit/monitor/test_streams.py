"""Announced streams: the rules for epochs, labels and expiry."""

from __future__ import annotations

from dataclasses import replace

from tensorpool.monitor.streams import AnnouncedStream, StreamLabels
from tensorpool.sbe.wire import ClockDomain
from tests.unit.monitor.test_model import announce, meta, source

S = 1_000_000_000
STALE_NS = 3 * S


def test_older_epoch_is_ignored_while_the_newer_one_is_fresh() -> None:
    stream = AnnouncedStream(5)
    assert stream.on_announce(announce(epoch=6), 0, STALE_NS)
    assert not stream.on_announce(announce(epoch=5), STALE_NS, STALE_NS)
    assert stream.is_fresh(STALE_NS, STALE_NS)
    assert not stream.is_fresh(STALE_NS + 1, STALE_NS)
    assert stream.on_announce(announce(epoch=5), STALE_NS + 1, STALE_NS)


def test_repeated_announce_renews_its_own_epoch_only() -> None:
    stream = AnnouncedStream(5)
    assert not stream.on_repeated_announce(1, 0)
    stream.on_announce(replace(announce(), announce_timestamp_ns=S), 2 * S, STALE_NS)
    assert not stream.on_repeated_announce(2, 3 * S)
    assert stream.on_repeated_announce(1, 5 * S)
    assert (stream.received_ns, stream.sent_ns) == (5 * S, 4 * S)
    other_clock = replace(announce(), announce_clock_domain=ClockDomain.REALTIME_SYNCED)
    stream.on_announce(other_clock, 6 * S, STALE_NS)
    assert stream.on_repeated_announce(1, 7 * S)
    assert stream.sent_ns is None


def test_labels_join_the_producer_s_and_the_driver_s() -> None:
    stream = AnnouncedStream(5)
    stream.on_announce(announce(), 0, STALE_NS)
    stream.on_source(replace(source("driver", version=0), summary="planned"), 0)
    stream.on_meta(meta("static", version=0), 0)
    assert (stream.labels, stream.summary) == (StreamLabels("driver", ("static",)), "planned")
    stream.on_source(source("camera"), 0)
    assert (stream.labels, stream.summary) == (StreamLabels("camera", ("static",)), "")
    # Attributes of another version than the announced one do not apply.
    stream.on_meta(meta("lab", version=2), 0)
    assert stream.labels.tags == ("static",)
    stream.on_source(source("camera", version=2), 0)
    assert stream.labels.tags == ("lab",)


def test_repeated_metadata_renews_only_what_is_known() -> None:
    stream = AnnouncedStream(5)
    for is_meta in (False, True):
        assert not stream.on_repeated_metadata(by_driver=False, is_meta=is_meta, now_ns=0)
    stream.on_meta(meta("lab"), 0)
    assert not stream.on_repeated_metadata(by_driver=False, is_meta=False, now_ns=S)
    assert stream.on_repeated_metadata(by_driver=False, is_meta=True, now_ns=S)
    stream.on_source(source("camera"), S)
    assert stream.on_repeated_metadata(by_driver=False, is_meta=False, now_ns=2 * S)
    # The attributes of a former producer are not those of the present one.
    stream.on_source(source("camera", epoch=2), 2 * S)
    assert not stream.on_repeated_metadata(by_driver=False, is_meta=True, now_ns=2 * S)


def test_parts_expire_by_their_own_time_of_receipt() -> None:
    stream = AnnouncedStream(5)
    stream.on_announce(announce(), 3 * S, STALE_NS)
    stream.on_source(source("driver", version=0), S)
    stream.on_source(source("camera"), 2 * S)
    assert stream.oldest_ns == S
    stream.expire(2 * S)
    assert stream.labels.name == "camera"
    stream.expire(3 * S)
    assert (stream.labels, stream.is_empty) == (StreamLabels(), False)
    stream.expire(3 * S + 1)
    assert stream.is_empty
