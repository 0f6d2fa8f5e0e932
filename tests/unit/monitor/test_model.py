"""The system model: events in, snapshots out, expiry, and bounds on its size."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tensorpool.attributes.tags import make_attributes
from tensorpool.monitor.model import SystemModel
from tensorpool.monitor.reports import (
    Activity,
    BridgeReport,
    ConsumerQos,
    ConsumerReport,
    ProducerQos,
    ProducerReport,
    RecorderLedgerReport,
    RecorderReport,
    RepeatedAnnounce,
    RepeatedMetadata,
    ServiceAlive,
)
from tensorpool.monitor.services import read_mapping, read_recorded, read_recorder
from tensorpool.monitor.snapshot import PoolView, StreamState, StreamView
from tensorpool.monitor.streams import ModelLimits
from tensorpool.sbe.driver import LeaseRevokeReason, Role, ShmLeaseRevoked
from tensorpool.sbe.wire import (
    ClockDomain,
    ConsumerHello,
    DataSourceAnnounce,
    DataSourceMeta,
    Mode,
    PayloadPool,
    ShmPoolAnnounce,
)

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


def stream_of(model: SystemModel, now_ns: int) -> StreamView:
    stream = model.snapshot(now_ns).stream(5)
    assert stream is not None
    return stream


def consumer_ids(model: SystemModel, now_ns: int) -> list[int]:
    return [consumer.consumer_id for consumer in stream_of(model, now_ns).consumers]


def test_left_out_sequences_are_no_frames_of_the_rate() -> None:
    """A limiter publishes every tenth frame under the sequence of its source."""
    model = SystemModel()
    model.observe(announce(), 0)
    for second in range(4):
        committed = 1 + 10 * second
        report = ProducerReport(
            5, 9, 1, 1, 1 + 100 * second, committed, committed, {}, 0, {}, 90 * second, 0, (), False
        )
        model.observe(report, second * S)
    stream = stream_of(model, 3 * S)
    assert stream.producer is not None
    assert (stream.producer.rate_hz, stream.producer.current_seq) == (10.0, 300)


def test_rates_backlog_and_drops_follow_from_reports() -> None:
    model = SystemModel()
    model.observe(announce(), 0)
    for second in range(4):
        model.observe(ProducerQos(5, 9, 1, 100 * second), second * S)
        model.observe(report(last=90 * second, gap=10 * second), second * S)
    stream = stream_of(model, 3 * S)
    assert stream.producer is not None
    assert (stream.state, stream.producer.rate_hz, stream.producer.current_seq) == ("live", 100.0, 300)
    [consumer] = stream.consumers
    assert (consumer.backlog, consumer.dropped_per_s, dict(consumer.dropped)) == (30, 10.0, {"gap": 30})
    assert dict(stream.dropped) == {"gap": 30}


def test_stream_is_stale_by_activity_or_announces_and_then_forgotten() -> None:
    model = SystemModel()
    model.observe(announce(producer_id=0), 0)
    assert stream_of(model, S).state is StreamState.VACANT
    model.observe(announce(), S)
    assert stream_of(model, S).state is StreamState.QUIET
    model.observe(Activity(5, 1, S), 7 * S)
    model.observe(RepeatedAnnounce(5, 1, announce()), 7 * S)
    assert stream_of(model, 7 * S).state is StreamState.STALE
    model.observe(Activity(5, 1, 7 * S), 8 * S)
    assert stream_of(model, 8 * S).state is StreamState.QUIET
    assert stream_of(model, 11 * S).state is StreamState.STALE
    assert model.snapshot(60 * S).streams == ()


def test_single_false_epoch_hides_a_stream_only_briefly() -> None:
    model = SystemModel()
    repeated = RepeatedAnnounce(5, 1, announce())
    model.observe(announce(), 0)
    model.observe(announce(epoch=1 << 60), S)
    model.observe(ConsumerQos(5, 7, 1 << 60, 3, 0, 0, False), S)
    for second in range(1, 8):
        model.observe(repeated, second * S)
        model.observe(report(7, last=second), second * S)
    stream = stream_of(model, 7 * S)
    assert (stream.epoch, stream.consumers[0].epoch, stream.consumers[0].last_seq) == (1, 1, 7)


def test_consumer_without_reports_or_lease_has_left() -> None:
    model = SystemModel()
    model.observe(announce(), 0)
    model.observe(report(7), 0)
    model.observe(report(8), 0)
    revoked = ShmLeaseRevoked(
        timestamp_ns=0,
        lease_id=1,
        stream_id=5,
        client_id=7,
        role=Role.CONSUMER,
        reason=LeaseRevokeReason.EXPIRED,
    )
    model.observe(revoked, S)
    for second in (1, 4):
        assert consumer_ids(model, second * S) == [8]
    assert consumer_ids(model, 7 * S) == []
    notices = model.snapshot(7 * S).notices
    assert [notice.text for notice in notices if notice.kind == "lease"] == ["consumer 7: expired"]
    assert [notice.text for notice in notices if "left" in notice.text] == [
        "consumer 7 left: its lease was revoked",
        "consumer 8 left: no reports any more",
    ]


def test_consumer_leaves_with_its_final_report() -> None:
    model = SystemModel()
    model.observe(announce(), 0)
    for is_final in (False, True):
        status = ConsumerReport(5, 7, 2, 1, 0, 9, 10, 10, {}, {}, 1, is_final)
        model.observe(status, S)
        assert consumer_ids(model, S) == ([] if is_final else [7])


def test_consumers_of_a_past_epoch_expire_within_three_periods() -> None:
    """After a driver was killed its clients reattach under other ids, without final reports of old ones."""
    model = SystemModel()
    model.observe(announce(epoch=1), 0)
    model.observe(report(7, epoch=1), 0)
    model.observe(report(8, epoch=1), 0)
    model.observe(announce(epoch=2), S)
    model.observe(report(9, epoch=2), S)
    # This consumer is slow: it still reports the past epoch.
    for half in range(2, 7):
        model.observe(report(8, epoch=1), half * S // 2)
    model.observe(report(9, epoch=2), 3 * S)
    assert consumer_ids(model, 3 * S) == [8, 9]


def test_announce_without_producer_removes_the_producer() -> None:
    model = SystemModel()
    model.observe(announce(), 0)
    model.observe(ProducerQos(5, 9, 1, 100), 0)
    model.observe(announce(producer_id=0), S)
    stream = stream_of(model, S)
    assert (stream.producer, stream.state) == (None, "vacant")


def test_consumers_of_a_forgotten_stream_make_room() -> None:
    model = SystemModel(ModelLimits(announce_period_ns=S // 100, max_consumers=2))
    for stream_id, second in ((5, 0), (6, 1), (7, 2)):
        model.observe(announce(stream_id=stream_id), second * S)
        for consumer_id in (1, 2):
            model.observe(report(consumer_id, stream_id=stream_id), second * S)
    snapshot = model.snapshot(2 * S)
    assert [(stream.stream_id, len(stream.consumers)) for stream in snapshot.streams] == [(7, 2)]
    assert snapshot.rejected == {}


def test_two_consumers_with_one_id_are_a_collision() -> None:
    model = SystemModel()
    model.observe(announce(), 0)
    for second in range(6):
        model.observe(report(7, last=100 + second, gap=5), second * S)
        model.observe(report(7, last=3, gap=0), second * S + 1)
    [collision] = model.snapshot(6 * S).collisions
    assert (collision.kind, collision.stream_id, collision.id) == ("consumer", 5, 7)
    # A consumer that restarts once is no collision.
    restarted = SystemModel()
    restarted.observe(report(7, last=100, gap=5), 0)
    restarted.observe(report(7, last=1, gap=0), S)
    assert restarted.snapshot(S).collisions == ()


def test_two_producers_or_owners_of_a_stream_are_collisions() -> None:
    model = SystemModel()
    for second in range(4):
        model.observe(announce(epoch=7), second * S)
        model.observe(announce(epoch=3), second * S + 1)
        model.observe(ProducerQos(5, 9, 7, second), second * S)
        model.observe(ProducerQos(5, 10, 7, second), second * S + 1)
    assert {collision.kind for collision in model.snapshot(4 * S).collisions} == {"stream", "producer"}
    assert stream_of(model, 4 * S).epoch == 7


def source(name: str, epoch: int = 1, version: int = 1) -> DataSourceAnnounce:
    return DataSourceAnnounce(stream_id=5, producer_id=9, epoch=epoch, meta_version=version, name=name)


def meta(*tags: str, version: int = 1) -> DataSourceMeta:
    return DataSourceMeta(
        stream_id=5, meta_version=version, timestamp_ns=0, attributes=make_attributes(tags, None)
    )


def test_former_producer_s_labels_end_with_its_epoch() -> None:
    model = SystemModel()
    model.observe(announce(epoch=1), 0)
    model.observe(source("by the driver", version=0), 0)
    model.observe(source("camera", epoch=1), 0)
    model.observe(meta("lab"), 0)
    assert (stream_of(model, 0).name, stream_of(model, 0).tags) == ("camera", ("lab",))
    model.observe(announce(epoch=2), S)
    assert (stream_of(model, S).name, stream_of(model, S).tags) == ("by the driver", ())
    # The producer reattached: its attributes are repeated unchanged, and apply to the new epoch again.
    model.observe(source("camera", epoch=2), S)
    model.observe(RepeatedMetadata(5, by_driver=False, is_meta=True, message=meta("lab").encode()), S)
    assert (stream_of(model, S).name, stream_of(model, S).tags) == ("camera", ("lab",))


def test_repeated_metadata_does_not_keep_a_stale_stream() -> None:
    model = SystemModel()
    model.observe(announce(), 0)
    model.observe(source("camera"), 0)
    repeated = RepeatedMetadata(5, by_driver=False, is_meta=False, message=source("camera").encode())
    for second in range(1, 30):
        model.observe(repeated, second * S)
    assert stream_of(model, 29 * S).state is StreamState.STALE
    assert model.snapshot(31 * S).streams == ()


def test_stream_view_has_layout_uris_and_the_announce_s_own_age() -> None:
    pool = PayloadPool(pool_id=1, pool_nslots=8, stride_bytes=64, region_uri="shm:file?path=/p")
    announced = replace(
        announce(), payload_pools=(pool,), header_region_uri="shm:file?path=/h", announce_timestamp_ns=S
    )
    model = SystemModel()
    model.observe(announced, 3 * S)
    stream = stream_of(model, 4 * S)
    assert (stream.header_uri, stream.producer_id, stream.is_announced) == ("shm:file?path=/h", 9, True)
    assert stream.pools == (PoolView(1, 64, 8, "shm:file?path=/p"),)
    assert stream.nbytes == 64 + 8 * 256 + 64 + 8 * 64
    assert (stream.announce_age_ns, stream.announce_sent_age_ns) == (S, 3 * S)
    # A repeated announce is not decoded: it took as long as the first one.
    model.observe(RepeatedAnnounce(5, 1, announced), 5 * S)
    stream = stream_of(model, 5 * S)
    assert (stream.announce_age_ns, stream.announce_sent_age_ns) == (0, 2 * S)
    other_clock = replace(announced, announce_clock_domain=ClockDomain.REALTIME_SYNCED)
    model.observe(other_clock, 6 * S)
    assert stream_of(model, 6 * S).announce_sent_age_ns is None


def test_producer_s_name_precedes_the_driver_s_and_requests_are_kept() -> None:
    model = SystemModel()
    for version, name in ((0, "by the driver"), (3, "camera")):
        model.observe(source(name, version=version), 0)
    hello = ConsumerHello(
        stream_id=5,
        consumer_id=7,
        supports_shm=True,
        supports_progress=False,
        mode=Mode.RATE_LIMITED,
        max_rate_hz=25,
        expected_layout_version=1,
    )
    model.observe(hello, 0)
    stream = stream_of(model, 0)
    assert stream.name == "camera"
    assert (stream.consumers[0].max_rate_hz, stream.consumers[0].requested_limit) == (25, True)


def test_recorder_status_and_ledger_are_joined_and_expire() -> None:
    model = SystemModel()
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
    recorded: dict[str, Any] = {
        "stream_id": 5,
        "epoch": "1",
        "first_seq": "0",
        "last_seq": "5",
        "span": 6,
        "rows": 5,
        "gaps": {"late": 1},
    }
    for _ in range(2):
        # The ledger stays when the next status comes.
        model.observe(RecorderReport(read_recorder("service:recorder:a", status)), 0)
        model.observe(RecorderLedgerReport("service:recorder:a", (read_recorded(recorded),)), 0)
    model.observe(RecorderReport(read_recorder("service:recorder:a", status)), 0)
    [recorder] = model.snapshot(0).recorders
    assert (recorder.instance, recorder.rows, recorder.written[0].span) == ("a", 5, 6)
    assert model.snapshot(60 * S).recorders == ()


def test_removed_mappings_of_a_bridge_leave_no_rates() -> None:
    model = SystemModel()

    def status(source_id: int, frames: int) -> BridgeReport:
        row: dict[str, Any] = {
            "direction": "send", "source_stream_id": source_id, "dest_stream_id": 1, "connected": True,
            "epoch": "1", "sent": frames, "published": frames, "bytes": 0, "dropped": {},
        }  # fmt: skip
        return BridgeReport("service:bridge", 4, (read_mapping(row),))

    for number in range(1, 500):
        model.observe(status(number, 1), number)
    [(bridge, _)] = model._services._bridges.values()
    assert len(bridge.rates) == 1
    # A mapping that stays has its rate.
    for second in range(1, 5):
        model.observe(status(499, 1 + 50 * second), second * S)
    [mapping] = model.snapshot(4 * S).bridges[0].mappings
    assert mapping.frames_per_s == 50


def test_invented_services_do_not_fill_the_model() -> None:
    model = SystemModel()
    for number in range(1200):
        model.observe(ServiceAlive(f"service:x:{number}", "x", str(number), 1), 0)
        model.observe(BridgeReport(f"service:bridge:{number}", 1, ()), 0)
    snapshot = model.snapshot(0)
    assert (len(snapshot.services), len(snapshot.bridges)) == (1024, 1024)
    assert snapshot.rejected == {"full": 176, "service": 176}


def test_invented_ids_do_not_fill_the_model() -> None:
    model = SystemModel(ModelLimits(max_streams=10, max_consumers=20))
    for number in range(1000):
        model.observe(announce(number), 0)
        model.observe(report(number, stream_id=3), 0)
        model.observe(ServiceAlive(f"service:{number}", "x", "", number), 0)
    snapshot = model.snapshot(0)
    assert len(snapshot.streams) == 10
    assert sum(len(stream.consumers) for stream in snapshot.streams) == 20
    assert snapshot.rejected["full"] == 990 + 980
    model.observe(object(), 0)
    assert model.snapshot(0).rejected["unknown"] == 1


ids = st.integers(1, 3)
counts = st.integers(0, 50)
reports = st.one_of(
    st.builds(announce, ids, ids, st.integers(0, 2)),
    st.builds(lambda stream, epoch: RepeatedAnnounce(stream, epoch, announce(stream, epoch)), ids, ids),
    st.builds(ProducerQos, ids, ids, ids, st.one_of(st.none(), counts)),
    st.builds(ConsumerQos, ids, ids, ids, st.one_of(st.none(), counts), counts, counts, st.booleans()),
    st.builds(
        ConsumerReport, ids, ids, ids, ids, counts, counts, counts, counts, st.just({}), st.just({}), counts,
        st.booleans(),
    ),
    st.builds(Activity, ids, ids, counts),
)  # fmt: skip


@given(st.lists(st.tuples(reports, st.integers(0, 8 * S)), max_size=60))
def test_consumer_count_is_right_after_any_events(events: list[tuple[object, int]]) -> None:
    model, now_ns = SystemModel(), 0
    for event, later_ns in events:
        now_ns += later_ns
        model.observe(event, now_ns)
    snapshot = model.snapshot(now_ns)
    assert model.consumers == sum(len(stream.consumers) for stream in snapshot.streams)
    for stream in snapshot.streams:
        for consumer in stream.consumers:
            assert consumer.report_age_ns <= model.limits.forget_consumer_ns
            assert consumer.backlog is None or consumer.backlog >= 0
