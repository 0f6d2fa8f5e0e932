"""Views of a snapshot: rates, lineage, and the sums and maxima over a stream's consumers."""

from __future__ import annotations

from tensorpool.monitor.model import SystemModel
from tensorpool.monitor.reports import ConsumerReport, LatencyStatus, ProducerQos, ProducerReport
from tensorpool.monitor.snapshot import LatencyView
from tests.unit.monitor.test_model import announce, report, stream_of

S = 1_000_000_000


def producer(epoch: int = 1, next_seq: int = 0, sources: tuple[int, ...] = ()) -> ProducerReport:
    return ProducerReport(5, 9, 1, epoch, next_seq, next_seq, next_seq, {}, 0, {}, 0, 0, sources, False)


def test_drops_on_purpose_are_no_loss() -> None:
    model = SystemModel()
    model.observe(announce(), 0)
    for second in range(3):
        dropped = {"rate_limited": 100 * second, "skipped": 10 * second, "late": 2 * second}
        status = ConsumerReport(5, 7, 2, 1, 0, 9, 10, 10, dropped, {}, 1, False)
        model.observe(status, second * S)
    [consumer] = stream_of(model, 2 * S).consumers
    assert consumer.dropped_per_s == 2
    assert consumer.lost == 4


def test_newer_sequence_wins_over_the_order_of_reports() -> None:
    model = SystemModel()
    model.observe(announce(), 0)
    for at, event in enumerate(
        (report(7, last=50), ConsumerReport(5, 7, 2, 1, 0, 40, 41, 41, {}, {}, 1, False))
    ):
        model.observe(event, at)
    [consumer] = stream_of(model, 1).consumers
    assert (consumer.last_seq, consumer.received) == (50, 41)


def test_status_reports_of_two_processes_are_a_collision() -> None:
    model = SystemModel()
    model.observe(announce(), 0)
    for at in range(6):
        model.observe(ConsumerReport(5, 7, 2 + at % 2, 1, 0, 40, 41, 41, {}, {}, 1, False), at)
    [collision] = model.snapshot(6).collisions
    assert (collision.kind, collision.stream_id, collision.id) == ("consumer", 5, 7)


def test_status_report_of_another_epoch_does_not_move_the_producer() -> None:
    model = SystemModel()
    model.observe(announce(epoch=2), 0)
    model.observe(producer(epoch=2, next_seq=10), 0)
    model.observe(producer(epoch=1, next_seq=500), 1)
    view = stream_of(model, 0).producer
    assert view is not None
    assert view.current_seq == 9


def test_stream_latency_is_the_highest_of_its_consumers() -> None:
    model = SystemModel()
    model.observe(announce(), 0)
    reported = {7: (5, 10, 90, 95, "publish"), 8: (3, 20, 30, 99, "publish")}
    for consumer_id, latency in reported.items():
        model.observe(report(consumer_id), 0)
        model.observe(LatencyStatus(5, consumer_id, *latency), 0)
    assert stream_of(model, 0).latency == LatencyView(8, 20, 90, 99, "publish")
    model.observe(report(9), 0)
    model.observe(LatencyStatus(5, 9, 1, 1, 1, 1, "capture"), 0)
    assert stream_of(model, 0).latency == LatencyView(9, 20, 90, 99, "mixed")
    # A period without frames has no latency.
    quiet = SystemModel()
    quiet.observe(announce(), 0)
    quiet.observe(report(7), 0)
    quiet.observe(LatencyStatus(5, 7, 0, 0, 0, 0, "publish"), 0)
    assert stream_of(quiet, 0).latency is None


def test_lineage_has_sources_and_derived_streams_but_no_loops() -> None:
    model = SystemModel()
    model.observe(announce(), 0)
    model.observe(announce(stream_id=6), 0)
    model.observe(producer(sources=(5, 6)), 0)
    lineage = {one.stream_id: (one.sources, one.derived) for one in model.snapshot(0).streams}
    assert lineage[6] == ((), (5,))
    assert lineage[5][1] == ()


def test_model_view_has_the_values_of_the_snapshot() -> None:
    model = SystemModel()
    model.observe(announce(), 0)
    model.observe(announce(stream_id=6), 0)
    for second in range(3):
        model.observe(producer(next_seq=101), second * S)
        model.observe(report(7, last=40, gap=3 * second), second * S)
        model.observe(report(8, last=100, epoch=2), second * S)
    model.observe(LatencyStatus(5, 7, 1, 2, 3_000_000, 4, "publish"), 2 * S)
    view = model.view(3 * S)
    assert dict(view.values("staleness")) == {(5, None): 3.0, (6, None): None}
    assert dict(view.values("drops")) == {(5, 7): 3.0, (5, 8): 0.0}
    assert dict(view.values("latency")) == {(5, 7): 0.003, (5, 8): None}
    # Consumer 8 is in another epoch: it has no backlog.
    assert dict(view.values("backlog")) == {(5, 7): 60, (5, 8): None}
    snapshot = model.snapshot(3 * S)
    for consumer_id in (7, 8):
        assert view.consumer(5, consumer_id) == snapshot.consumer(5, consumer_id) is not None
    assert view.consumer(5, 9) is view.consumer(9, 7) is None
    assert (model.streams, model.consumers) == (2, 2)
    # A latency that is not reported any more expires.
    model.observe(report(7, last=41, gap=6), 7 * S)
    assert dict(model.view(8 * S).values("latency")) == {(5, 7): None}


def test_producer_enters_an_epoch_by_its_status_report() -> None:
    """Before the first frame of an epoch there are no QoS reports of it."""
    model = SystemModel()
    model.observe(announce(), 0)
    model.observe(ProducerQos(5, 9, 1, 41, 3), 0)
    model.observe(producer(epoch=2), 1)
    # The last report of the epoch before comes on another stream, and may be read later.
    model.observe(ProducerQos(5, 9, 1, 42, 3), 2)
    view = stream_of(model, 3).producer
    assert view is not None
    assert (view.epoch, view.current_seq, view.watermark) == (2, None, None)
    model.observe(ProducerQos(5, 9, 2, 0, 1), 4)
    view = stream_of(model, 5).producer
    assert view is not None
    assert (view.epoch, view.current_seq, view.watermark) == (2, 0, 1)
