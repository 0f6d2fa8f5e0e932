"""Rates, lineage and what a stream's consumers come to together."""

from __future__ import annotations

from tensorpool.monitor.model import SystemModel
from tensorpool.monitor.rates import RateMeter
from tensorpool.monitor.reports import ConsumerStatus, LatencyStatus, ProducerStatus
from tensorpool.monitor.snapshot import LatencyView, StreamView
from tests.unit.supervisor.test_picture import announce, report

S = 1_000_000_000


def producer(epoch: int = 1, next_seq: int = 0, sources: tuple[int, ...] = ()) -> ProducerStatus:
    return ProducerStatus(5, 9, 1, epoch, next_seq, next_seq, next_seq, {}, 0, {}, 0, 0, sources, False)


def stream(picture: SystemModel, now_ns: int = 0) -> StreamView:
    found = picture.snapshot(now_ns).stream(5)
    assert found is not None
    return found


def test_a_rate_is_of_the_last_three_periods_and_begins_anew_when_a_count_does() -> None:
    gauge = RateMeter()
    assert gauge.per_s() is None
    for second, count in enumerate((0, 1000, 1010, 1020, 1030)):
        gauge.add(second * S, count)
    assert gauge.per_s() == 10
    # Twice in one moment: the later word counts.
    gauge.add(4 * S, 1060)
    assert gauge.per_s() == 20
    gauge.add(5 * S, 7)
    assert gauge.per_s() is None
    gauge.add(6 * S, 12)
    assert gauge.per_s() == 5
    gauge.clear()
    assert gauge.per_s() is None


def test_what_is_left_out_on_purpose_is_no_loss() -> None:
    picture = SystemModel()
    picture.observe(announce(), 0)
    for second in range(3):
        dropped = {"rate_limited": 100 * second, "skipped": 10 * second, "late": 2 * second}
        told = ConsumerStatus(5, 7, 2, 1, 0, 9, 10, 10, dropped, {}, 1, False)
        picture.observe(told, second * S)
    [one] = stream(picture, 2 * S).consumers
    assert one.dropped_per_s == 2
    assert one.lost == 4


def test_of_a_report_and_an_account_the_later_one_counts_whichever_is_read_first() -> None:
    picture = SystemModel()
    picture.observe(announce(), 0)
    for at, event in enumerate(
        (report(7, last=50), ConsumerStatus(5, 7, 2, 1, 0, 40, 41, 41, {}, {}, 1, False))
    ):
        picture.observe(event, at)
    [one] = stream(picture, 1).consumers
    assert (one.last_seq, one.received) == (50, 41)


def test_two_processes_that_tell_under_one_id_are_told() -> None:
    picture = SystemModel()
    picture.observe(announce(), 0)
    for at in range(6):
        picture.observe(ConsumerStatus(5, 7, 2 + at % 2, 1, 0, 40, 41, 41, {}, {}, 1, False), at)
    [found] = picture.snapshot(6).collisions
    assert (found.kind, found.stream_id, found.id) == ("consumer", 5, 7)


def test_an_account_of_another_epoch_does_not_move_the_producer() -> None:
    picture = SystemModel()
    picture.observe(announce(epoch=2), 0)
    picture.observe(producer(epoch=2, next_seq=10), 0)
    picture.observe(producer(epoch=1, next_seq=500), 1)
    found = stream(picture).producer
    assert found is not None
    assert found.current_seq == 9


def test_a_streams_latency_is_that_of_its_slowest_consumers() -> None:
    picture = SystemModel()
    picture.observe(announce(), 0)
    said = {7: (5, 10, 90, 95, "publish"), 8: (3, 20, 30, 99, "publish")}
    for consumer_id, latency in said.items():
        picture.observe(report(consumer_id), 0)
        picture.observe(LatencyStatus(5, consumer_id, *latency), 0)
    assert stream(picture).latency == LatencyView(8, 20, 90, 99, "publish")
    picture.observe(report(9), 0)
    picture.observe(LatencyStatus(5, 9, 1, 1, 1, 1, "capture"), 0)
    assert stream(picture).latency == LatencyView(9, 20, 90, 99, "mixed")
    # Silence is no latency.
    quiet = SystemModel()
    quiet.observe(announce(), 0)
    quiet.observe(report(7), 0)
    quiet.observe(LatencyStatus(5, 7, 0, 0, 0, 0, "publish"), 0)
    assert stream(quiet).latency is None


def test_lineage_goes_both_ways_and_nothing_is_made_from_itself() -> None:
    picture = SystemModel()
    picture.observe(announce(), 0)
    picture.observe(announce(stream_id=6), 0)
    picture.observe(producer(sources=(5, 6)), 0)
    found = {one.stream_id: (one.sources, one.feeds) for one in picture.snapshot(0).streams}
    assert found[6] == ((), (5,))
    assert found[5][1] == ()


def test_rules_look_at_the_figures_that_are_shown() -> None:
    picture = SystemModel()
    picture.observe(announce(), 0)
    picture.observe(announce(stream_id=6), 0)
    for second in range(3):
        picture.observe(producer(next_seq=101), second * S)
        picture.observe(report(7, last=40, gap=3 * second), second * S)
        picture.observe(report(8, last=100, epoch=2), second * S)
    picture.observe(LatencyStatus(5, 7, 1, 2, 3_000_000, 4, "publish"), 2 * S)
    sight = picture.sight(3 * S)
    assert dict(sight.figures("staleness")) == {(5, None): 3.0, (6, None): None}
    assert dict(sight.figures("drops")) == {(5, 7): 3.0, (5, 8): 0.0}
    assert dict(sight.figures("latency")) == {(5, 7): 0.003, (5, 8): None}
    # Of another epoch: there is nothing to compare it with.
    assert dict(sight.figures("backlog")) == {(5, 7): 60, (5, 8): None}
    shown = picture.snapshot(3 * S)
    for consumer_id in (7, 8):
        assert sight.consumer(5, consumer_id) == shown.consumer(5, consumer_id) is not None
    assert sight.consumer(5, 9) is sight.consumer(9, 7) is None
    assert (picture.streams, picture.consumers) == (2, 2)
    # A latency that is not told any more is none.
    picture.observe(report(7, last=41, gap=6), 7 * S)
    assert dict(picture.sight(8 * S).figures("latency")) == {(5, 7): None}
