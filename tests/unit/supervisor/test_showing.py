"""Rates, lineage and what a stream's consumers come to together."""

from __future__ import annotations

from tensorpool.supervisor import Picture
from tensorpool.supervisor.events import ConsumerTold, LatencyTold, ProducerTold
from tensorpool.supervisor.gauge import Gauge
from tensorpool.supervisor.views import LatencyView, StreamView
from tests.unit.supervisor.test_picture import announce, report

S = 1_000_000_000


def producer(epoch: int = 1, next_seq: int = 0, sources: tuple[int, ...] = ()) -> ProducerTold:
    return ProducerTold(5, 9, 1, epoch, next_seq, next_seq, next_seq, {}, 0, {}, 0, 0, sources, False)


def stream(picture: Picture, now_ns: int = 0) -> StreamView:
    found = picture.snapshot(now_ns).stream(5)
    assert found is not None
    return found


def test_a_rate_is_of_the_last_three_periods_and_begins_anew_when_a_count_does() -> None:
    gauge = Gauge()
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
    picture = Picture()
    picture.observe(announce(), 0)
    for second in range(3):
        dropped = {"rate_limited": 100 * second, "skipped": 10 * second, "late": 2 * second}
        told = ConsumerTold(5, 7, 2, 1, 0, 9, 10, 10, dropped, {}, 1, False)
        picture.observe(told, second * S)
    [one] = stream(picture, 2 * S).consumers
    assert one.dropped_per_s == 2
    assert one.lost == 4


def test_an_account_of_another_epoch_does_not_move_the_producer() -> None:
    picture = Picture()
    picture.observe(announce(epoch=2), 0)
    picture.observe(producer(epoch=2, next_seq=10), 0)
    picture.observe(producer(epoch=1, next_seq=500), 1)
    found = stream(picture).producer
    assert found is not None
    assert found.current_seq == 9


def test_a_streams_latency_is_that_of_its_slowest_consumers() -> None:
    picture = Picture()
    picture.observe(announce(), 0)
    said = {7: LatencyView(5, 10, 90, 95, "publish"), 8: LatencyView(3, 20, 30, 99, "publish")}
    for consumer_id, latency in said.items():
        picture.observe(report(consumer_id), 0)
        picture.observe(LatencyTold(5, consumer_id, latency), 0)
    assert stream(picture).latency == LatencyView(8, 20, 90, 99, "publish")
    picture.observe(report(9), 0)
    picture.observe(LatencyTold(5, 9, LatencyView(1, 1, 1, 1, "capture")), 0)
    assert stream(picture).latency == LatencyView(9, 20, 90, 99, "mixed")
    # Silence is no latency.
    quiet = Picture()
    quiet.observe(announce(), 0)
    quiet.observe(report(7), 0)
    quiet.observe(LatencyTold(5, 7, LatencyView(0, 0, 0, 0, "publish")), 0)
    assert stream(quiet).latency is None


def test_lineage_goes_both_ways_and_nothing_is_made_from_itself() -> None:
    picture = Picture()
    picture.observe(announce(), 0)
    picture.observe(announce(stream_id=6), 0)
    picture.observe(producer(sources=(5, 6)), 0)
    found = {one.stream_id: (one.sources, one.feeds) for one in picture.snapshot(0).streams}
    assert found[6] == ((), (5,))
    assert found[5][1] == ()
