"""Samples over time."""

from __future__ import annotations

from dataclasses import replace

from tensorpool.console.history import COARSE, FINE, MAX_REASONS, MAX_TRACKS, STEP, SYSTEM, History
from tensorpool.monitor.snapshot import Snapshot
from tests.unit.top.snapshots import consumer, producer, stream


def sample(second: int, rate: float = 30.0, late: int = 0) -> Snapshot:
    reader = consumer(10, 7, {"late": late} if late else {})
    return Snapshot(
        second * 10**9, streams=(stream(10, producer=producer(rate_hz=rate), consumers=(reader,)),)
    )


def test_samples_are_returned_oldest_first() -> None:
    history = History()
    for second in range(3):
        history.add(sample(second, rate=10.0 * second), 1000 * second)
    reply = history.read("10", "minutes")
    assert reply["at"] == [0, 1000, 2000]
    assert reply["series"]["rate"] == [0, 10, 20]
    assert history.read(SYSTEM, "minutes")["series"]["rate"] == [0, 10, 20]
    point = history.newest("10")
    assert point is not None
    assert (point["at"], point["values"]["rate"]) == (2000, 20)


def test_drops_are_differences_a_second() -> None:
    history = History()
    for second, late in ((0, 100), (1, 100), (3, 150)):
        history.add(sample(second, late=late), second)
    # The first sight of a consumer is no drop: it may have lost frames an hour ago.
    assert history.read("10", "minutes")["series"]["drop:late"] == [None, None, 25]
    history.add(sample(4, late=150), 4)
    assert history.read("10", "minutes")["series"]["drop:late"][-1] == 0


def test_rings_are_bounded_and_coarse_samples_are_means_and_peaks() -> None:
    history = History()
    for second in range(FINE + STEP):
        history.add(sample(second, rate=float(second % 2)), second)
    assert len(history.read("10", "minutes")["at"]) == FINE
    hours = history.read("10", "hours")
    assert len(hours["at"]) == (FINE + STEP) // STEP < COARSE
    assert set(hours["series"]["rate"]) == {0.5}
    assert set(hours["series"]["p99"]) == {400}


def test_stream_that_is_gone_has_a_gap_and_not_its_last_value() -> None:
    history = History()
    history.add(sample(0), 0)
    history.add(Snapshot(10**9), 1)
    assert history.read("10", "minutes")["series"]["rate"] == [30, None]


def test_tracks_and_reasons_are_bounded() -> None:
    history = History()
    many = Snapshot(0, streams=tuple(stream(n) for n in range(1, MAX_TRACKS + 50)))
    history.add(many, 0)
    assert history.read(str(MAX_TRACKS + 40), "minutes")["series"] == {}
    base = sample(0)
    for count in range(2):
        dropped = {f"reason-{n}": count for n in range(40)}
        reader = replace(base.streams[0].consumers[0], dropped=dropped)
        history.add(Snapshot(count * 10**9, streams=(replace(base.streams[0], consumers=(reader,)),)), count)
    series = history.read("10", "minutes")["series"]
    drops = [name for name in series if name.startswith("drop:")]
    assert len(drops) == MAX_REASONS + 1
    assert series["drop:other"][-1] == 40 - MAX_REASONS
