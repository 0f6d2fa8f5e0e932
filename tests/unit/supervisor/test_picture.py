"""The picture: what goes in, what comes out, who is forgotten, and that it stays within its bounds."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tensorpool.monitor.model import SystemModel
from tensorpool.monitor.reports import (
    Activity,
    BridgeStatus,
    ConsumerQos,
    ConsumerStatus,
    DriverLeases,
    DriverStatus,
    ProducerQos,
    RecorderLedger,
    RecorderStatus,
    RepeatedAnnounce,
    ServiceAlive,
)
from tensorpool.monitor.snapshot import StreamState
from tensorpool.monitor.streams import ModelLimits
from tensorpool.sbe.driver import LeaseRevokeReason, Role, ShmLeaseRevoked
from tensorpool.sbe.wire import ClockDomain, ConsumerHello, DataSourceAnnounce, Mode, ShmPoolAnnounce

S = 1_000_000_000


def announce(stream_id: int = 5, epoch: int = 1, producer_id: int = 9) -> ShmPoolAnnounce:
    return ShmPoolAnnounce(
        stream_id=stream_id,
        producer_id=producer_id,
        epoch=epoch,
        announce_timestamp_ns=0,
        announce_clock_domain=ClockDomain.MONOTONIC,
        layout_version=1,
        header_nslots=8,
        header_slot_bytes=256,
    )


def report(consumer_id: int = 7, last: int = 0, gap: int = 0, late: int = 0, **more: Any) -> ConsumerQos:
    fields = {"stream_id": 5, "epoch": 1, "is_limited": False, **more}
    return ConsumerQos(consumer_id=consumer_id, last_seq=last, drops_gap=gap, drops_late=late, **fields)


def test_rates_backlog_and_drops_follow_from_reports() -> None:
    picture = SystemModel()
    picture.observe(announce(), 0)
    for second in range(4):
        picture.observe(ProducerQos(5, 9, 1, 100 * second), second * S)
        picture.observe(report(last=90 * second, gap=10 * second), second * S)
    found = picture.snapshot(3 * S)
    stream = found.stream(5)
    assert stream is not None
    assert stream.producer is not None
    assert (stream.state, stream.producer.rate_hz, stream.producer.current_seq) == ("live", 100.0, 300)
    [one] = stream.consumers
    assert (one.backlog, one.dropped_per_s, dict(one.dropped)) == (30, 10.0, {"gap": 30})
    assert dict(stream.dropped) == {"gap": 30}


def test_a_stream_is_stale_by_its_memory_or_by_silence_and_forgotten_later() -> None:
    picture = SystemModel()
    picture.observe(announce(producer_id=0), 0)
    assert picture.snapshot(S).stream(5).state is StreamState.NO_PRODUCER  # type: ignore[union-attr]
    picture.observe(announce(), S)
    assert picture.snapshot(S).stream(5).state is StreamState.QUIET  # type: ignore[union-attr]
    picture.observe(Activity(5, 1, S), 7 * S)
    picture.observe(RepeatedAnnounce(5, 1, announce()), 7 * S)
    assert picture.snapshot(7 * S).stream(5).state is StreamState.STALE  # type: ignore[union-attr]
    picture.observe(Activity(5, 1, 7 * S), 8 * S)
    assert picture.snapshot(8 * S).stream(5).state is StreamState.QUIET  # type: ignore[union-attr]
    assert picture.snapshot(11 * S).stream(5).state is StreamState.STALE  # type: ignore[union-attr]
    assert picture.snapshot(60 * S).streams == ()


def test_one_lie_about_an_epoch_does_not_hide_a_stream_for_long() -> None:
    picture = SystemModel()
    sound = RepeatedAnnounce(5, 1, announce())
    picture.observe(announce(), 0)
    picture.observe(announce(epoch=1 << 60), S)
    picture.observe(ConsumerQos(5, 7, 1 << 60, 3, 0, 0, False), S)
    for second in range(1, 8):
        picture.observe(sound, second * S)
        picture.observe(report(7, last=second), second * S)
    stream = picture.snapshot(7 * S).stream(5)
    assert stream is not None
    assert (stream.epoch, stream.consumers[0].epoch, stream.consumers[0].last_seq) == (1, 1, 7)


def test_who_falls_silent_or_loses_its_lease_has_left() -> None:
    picture = SystemModel()
    picture.observe(announce(), 0)
    picture.observe(report(7), 0)
    picture.observe(report(8), 0)
    gone = ShmLeaseRevoked(
        timestamp_ns=0,
        lease_id=1,
        stream_id=5,
        client_id=7,
        role=Role.CONSUMER,
        reason=LeaseRevokeReason.EXPIRED,
    )
    picture.observe(gone, S)
    for second in (1, 4):
        assert [one.consumer_id for one in picture.snapshot(second * S).stream(5).consumers] == [8]  # type: ignore[union-attr]
    assert picture.snapshot(7 * S).stream(5).consumers == ()  # type: ignore[union-attr]
    assert [one.text for one in picture.snapshot(7 * S).notices if one.kind == "lease"] == [
        "consumer 7: expired"
    ]


def test_who_says_its_last_word_has_left_at_once() -> None:
    picture = SystemModel()
    picture.observe(announce(), 0)
    for is_final in (False, True):
        told = ConsumerStatus(5, 7, 2, 1, 0, 9, 10, 10, {}, {}, 1, is_final)
        picture.observe(told, S)
        stream = picture.snapshot(S).stream(5)
        assert stream is not None
        assert [one.consumer_id for one in stream.consumers] == ([] if is_final else [7])


def test_who_was_there_in_an_epoch_that_is_over_is_gone_within_three_periods() -> None:
    """After a driver's death clients come back under other ids, and nobody says farewell to the old ones."""
    picture = SystemModel()
    picture.observe(announce(epoch=1), 0)
    picture.observe(report(7, epoch=1), 0)
    picture.observe(report(8, epoch=1), 0)
    picture.observe(announce(epoch=2), S)
    picture.observe(report(9, epoch=2), S)
    # This one is slow, and there: it still reports the epoch before.
    for half in range(2, 7):
        picture.observe(report(8, epoch=1), half * S // 2)
    picture.observe(report(9, epoch=2), 3 * S)
    stream = picture.snapshot(3 * S).stream(5)
    assert stream is not None
    assert [one.consumer_id for one in stream.consumers] == [8, 9]


def test_a_producer_that_left_is_gone_with_the_announce_that_says_so() -> None:
    picture = SystemModel()
    picture.observe(announce(), 0)
    picture.observe(ProducerQos(5, 9, 1, 100), 0)
    picture.observe(announce(producer_id=0), S)
    stream = picture.snapshot(S).stream(5)
    assert stream is not None
    assert (stream.producer, stream.state) == (None, "no_producer")


def test_consumers_of_a_stream_that_is_forgotten_make_room() -> None:
    picture = SystemModel(ModelLimits(announce_period_ns=S // 100, max_consumers=2))
    for stream_id, second in ((5, 0), (6, 1), (7, 2)):
        picture.observe(announce(stream_id=stream_id), second * S)
        for consumer_id in (1, 2):
            picture.observe(report(consumer_id, stream_id=stream_id), second * S)
    found = picture.snapshot(2 * S)
    assert [(one.stream_id, len(one.consumers)) for one in found.streams] == [(7, 2)]
    assert found.unheard == {}


def test_two_who_go_by_one_id_are_told() -> None:
    picture = SystemModel()
    picture.observe(announce(), 0)
    for second in range(6):
        picture.observe(report(7, last=100 + second, gap=5), second * S)
        picture.observe(report(7, last=3, gap=0), second * S + 1)
    [found] = picture.snapshot(6 * S).collisions
    assert (found.kind, found.stream_id, found.id) == ("consumer", 5, 7)
    # One that only began anew is none.
    fresh = SystemModel()
    fresh.observe(report(7, last=100, gap=5), 0)
    fresh.observe(report(7, last=1, gap=0), S)
    assert fresh.snapshot(S).collisions == ()


def test_two_producers_and_two_owners_of_one_stream_are_told() -> None:
    picture = SystemModel()
    for second in range(4):
        picture.observe(announce(epoch=7), second * S)
        picture.observe(announce(epoch=3), second * S + 1)
        picture.observe(ProducerQos(5, 9, 7, second), second * S)
        picture.observe(ProducerQos(5, 10, 7, second), second * S + 1)
    assert {one.kind for one in picture.snapshot(4 * S).collisions} == {"stream", "producer"}
    assert picture.snapshot(4 * S).stream(5).epoch == 7  # type: ignore[union-attr]


def test_names_and_wishes_are_kept() -> None:
    picture = SystemModel()
    for version, name in ((0, "by the driver"), (3, "camera")):
        said = DataSourceAnnounce(stream_id=5, producer_id=9, epoch=1, meta_version=version, name=name)
        picture.observe(said, 0)
    hello = ConsumerHello(
        stream_id=5,
        consumer_id=7,
        supports_shm=True,
        supports_progress=False,
        mode=Mode.RATE_LIMITED,
        max_rate_hz=25,
        expected_layout_version=1,
    )
    picture.observe(hello, 0)
    stream = picture.snapshot(0).stream(5)
    assert stream is not None
    assert stream.name == "camera"
    assert (stream.consumers[0].max_rate_hz, stream.consumers[0].wants_limit) == (25, True)


def test_what_services_tell_is_shown_and_what_is_wrong_is_counted() -> None:
    picture = SystemModel()
    status = {
        "state": "recording",
        "problem": None,
        "root": "/r",
        "pid": 3,
        "rows": 5,
        "gaps": {"late": 1},
        "rows_per_s": 1.0,
        "bytes_per_s": 2,
        "backlog_bytes": 0,
        "disk_free_bytes": 9,
        "streams": [5],
    }
    written = {
        "stream_id": 5,
        "epoch": "1",
        "first_seq": "0",
        "last_seq": "5",
        "span": 6,
        "rows": 5,
        "gaps": {"late": 1},
    }
    picture.observe(RecorderStatus("service:recorder:a", status), 0)
    picture.observe(RecorderLedger("service:recorder:a", (written,)), 0)
    for wrong in (
        RecorderStatus("service:recorder", {}),
        RecorderLedger("service:recorder", ({},)),
        DriverStatus("service:driver", {"pid": "x"}),
        DriverLeases("service:driver", ({"lease_id": -1},)),
        BridgeStatus("service:bridge", 1, ({"direction": "send"},)),
    ):
        picture.observe(wrong, 0)
    found = picture.snapshot(0)
    assert [(one.instance, one.rows, one.written[0].span) for one in found.recorders] == [("a", 5, 6)]
    assert found.unheard == {"service": 5}
    assert picture.snapshot(60 * S).recorders == ()


def test_of_mappings_that_a_bridge_has_no_more_nothing_is_kept() -> None:
    picture = SystemModel()

    def told(source: int, frames: int) -> BridgeStatus:
        row = {
            "direction": "send", "source_stream_id": source, "dest_stream_id": 1, "connected": True,
            "epoch": "1", "sent": frames, "published": frames, "bytes": 0, "dropped": {},
        }  # fmt: skip
        return BridgeStatus("service:bridge", 4, (row,))

    for number in range(1, 500):
        picture.observe(told(number, 1), number)
    [bridge] = picture._services._bridges.values()
    assert len(bridge.gauges) == 1
    # One that stays has its rate.
    for second in range(1, 5):
        picture.observe(told(499, 1 + 50 * second), second * S)
    [mapping] = picture.snapshot(4 * S).bridges[0].mappings
    assert mapping.frames_per_s == 50


def test_services_that_are_made_up_find_no_room_beyond_a_bound() -> None:
    picture = SystemModel()
    for number in range(1200):
        picture.observe(ServiceAlive(f"service:x:{number}", "x", str(number), 1), 0)
        picture.observe(BridgeStatus(f"service:bridge:{number}", 1, ()), 0)
    found = picture.snapshot(0)
    assert (len(found.services), len(found.bridges)) == (1024, 1024)
    assert found.unheard == {"full": 176, "service": 176}


def test_strangers_cannot_fill_it() -> None:
    picture = SystemModel(ModelLimits(max_streams=10, max_consumers=20))
    for number in range(1000):
        picture.observe(announce(number), 0)
        picture.observe(report(number, stream_id=3), 0)
        picture.observe(ServiceAlive(f"service:{number}", "x", "", number), 0)
    found = picture.snapshot(0)
    assert len(found.streams) == 10
    assert sum(len(one.consumers) for one in found.streams) == 20
    assert found.unheard["full"] == 990 + 980
    picture.observe(object(), 0)
    assert picture.snapshot(0).unheard["unknown"] == 1


ids = st.integers(1, 3)
counts = st.integers(0, 50)
reports = st.one_of(
    st.builds(announce, ids, ids, st.integers(0, 2)),
    st.builds(lambda stream, epoch: RepeatedAnnounce(stream, epoch, announce(stream, epoch)), ids, ids),
    st.builds(ProducerQos, ids, ids, ids, st.one_of(st.none(), counts)),
    st.builds(ConsumerQos, ids, ids, ids, st.one_of(st.none(), counts), counts, counts, st.booleans()),
    st.builds(
        ConsumerStatus, ids, ids, ids, ids, counts, counts, counts, counts, st.just({}), st.just({}), counts,
        st.booleans(),
    ),
    st.builds(Activity, ids, ids, counts),
)  # fmt: skip


@given(st.lists(st.tuples(reports, st.integers(0, 8 * S)), max_size=60))
def test_whatever_comes_the_count_of_consumers_is_right(events: list[tuple[object, int]]) -> None:
    picture, now_ns = SystemModel(), 0
    for event, later_ns in events:
        now_ns += later_ns
        picture.observe(event, now_ns)
    found = picture.snapshot(now_ns)
    assert picture._consumers == sum(len(one.consumers) for one in found.streams)
    for stream in found.streams:
        for one in stream.consumers:
            assert one.report_age_ns <= picture.bounds.forget_consumer_ns
            assert one.backlog is None or one.backlog >= 0
