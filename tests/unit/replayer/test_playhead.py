"""The playhead: due times keep the recorded intervals through pauses, seeks, steps and other speeds."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorpool.replayer.playhead import Playhead

NOW = 5_000_000_000
MS = 1_000_000

times_of_rows = st.lists(st.integers(0, 10**12), min_size=1, max_size=40).map(sorted)
speeds = st.floats(0.001, 1000, allow_nan=False)


def array(values: list[int]) -> np.ndarray:
    return np.array(values, np.int64)


def due(head: Playhead, play_times: np.ndarray) -> list[int]:
    times = head.due(play_times)
    assert times is not None
    return times.tolist()


@given(times_of_rows, st.integers(1, 39))
def test_playhead_keeps_recorded_intervals_at_speed_one(times: list[int], cut: int) -> None:
    head = Playhead(NOW, speed=1)
    play_times = np.concatenate([head.schedule(array(times[:cut])), head.schedule(array(times[cut:]))])
    dues = due(head, play_times)
    assert dues[0] == NOW
    assert [b - a for a, b in pairwise(dues)] == [b - a for a, b in pairwise(times)]


@given(times_of_rows, speeds)
def test_playhead_scales_times_to_the_nanosecond(times: list[int], speed: float) -> None:
    head = Playhead(NOW, speed=speed)
    for time_ns, due_ns in zip(times, due(head, head.schedule(array(times))), strict=True):
        exact = NOW + Fraction(time_ns - times[0]) / Fraction(speed)
        # A float has 53 bits: the last nanosecond of some hours may be wrong.
        assert abs(due_ns - exact) <= 1 + exact / 2**50


@given(times_of_rows, st.integers(0, 39), st.integers(0, 10**10), st.integers(0, 10**10))
def test_pause_delays_the_remaining_rows_by_its_length(
    times: list[int], first_row: int, pause_at: int, length: int
) -> None:
    head = Playhead(NOW, speed=1)
    play_times = head.schedule(array(times))
    before = due(head, play_times)
    head.pause(NOW + pause_at)
    assert head.is_paused
    head.resume(NOW + pause_at + length)
    assert due(head, play_times)[first_row:] == [ns + length for ns in before[first_row:]]


def test_second_pause_has_no_effect() -> None:
    head = Playhead(NOW, speed=1)
    play_times = head.schedule(array([0, 100]))
    head.pause(NOW + 10)
    head.pause(NOW + 50)
    head.resume(NOW + 60)
    head.resume(NOW + 90)
    assert due(head, play_times) == [NOW + 50, NOW + 150]


def test_rows_after_steps_keep_their_recorded_distance() -> None:
    head = Playhead(NOW, speed=1)
    play_times = head.schedule(array([0, 100 * MS, 150 * MS, 250 * MS]))
    head.pause(NOW + 10 * MS)
    head.on_step(int(play_times[1]))
    head.on_step(int(play_times[2]))
    head.resume(NOW + 1000 * MS)
    assert due(head, play_times)[3] == NOW + 1000 * MS + 100 * MS


def test_seek_makes_the_next_row_due_now() -> None:
    head = Playhead(NOW, speed=2)
    head.schedule(array([0, 10 * MS, 20 * MS]))
    head.seek(NOW + 3 * MS)
    play_times = head.schedule(array([500 * MS, 510 * MS]))
    assert due(head, play_times) == [NOW + 3 * MS, NOW + 8 * MS]
    # A seek back works like a seek forward.
    head.seek(NOW + 4 * MS)
    assert due(head, head.schedule(array([5 * MS, 6 * MS]))) == [NOW + 4 * MS, NOW + 4 * MS + MS // 2]


def test_seek_during_a_pause_waits_for_resume() -> None:
    head = Playhead(NOW, speed=1)
    head.schedule(array([0, 10]))
    head.pause(NOW + 5)
    head.seek(NOW + 7)
    play_times = head.schedule(array([100, 130]))
    head.resume(NOW + 1000)
    assert due(head, play_times) == [NOW + 1000, NOW + 1030]


@given(times_of_rows, st.integers(1, 4))
def test_passes_are_one_average_interval_apart(times: list[int], passes: int) -> None:
    head = Playhead(NOW, speed=1)
    dues = due(head, head.schedule(array(times)))
    for _ in range(passes):
        head.begin_pass()
        more = due(head, head.schedule(array(times)))
        moments, span = len(set(times)), times[-1] - times[0]
        assert more[0] - dues[-1] == (span // (moments - 1) if moments > 1 else 1_000_000_000)
        assert [b - a for a, b in pairwise(more)] == [b - a for a, b in pairwise(times)]
        dues = more


def test_max_pause_shortens_longer_intervals() -> None:
    head = Playhead(NOW, speed=1, max_pause_ns=30)
    play_times = np.concatenate([head.schedule(array([0, 10, 500])), head.schedule(array([900, 910]))])
    assert due(head, play_times) == [NOW, NOW + 10, NOW + 40, NOW + 70, NOW + 80]


def test_fixed_rate_replaces_recorded_times() -> None:
    head = Playhead(NOW, speed=1, every_ns=MS)
    play_times = np.concatenate([head.schedule(array([0, 10, 10])), head.schedule(array([10**12]))])
    assert due(head, play_times) == [NOW + number * MS for number in range(4)]
    head.begin_pass()
    assert due(head, head.schedule(array([0]))) == [NOW + 4 * MS]


def test_full_speed_has_no_due_times() -> None:
    head = Playhead(NOW, speed=None)
    assert head.due(head.schedule(array([0, 10]))) is None


@pytest.mark.parametrize(("before", "after"), [(1, 2), (4, 0.5)])
def test_set_speed_scales_the_remaining_time(before: float, after: float) -> None:
    head = Playhead(NOW, speed=before)
    play_times = head.schedule(array([0, 100 * MS, 300 * MS]))
    now = NOW + 40 * MS
    left = due(head, play_times)[1] - now
    head.set_speed(after, now, int(play_times[1]))
    changed = due(head, play_times)
    assert changed[1] == now + round(max(0, left) * before / after)
    assert changed[2] - changed[1] == 200 * MS / after


def test_set_speed_after_full_speed_makes_the_next_row_due() -> None:
    head = Playhead(NOW, speed=None)
    play_times = head.schedule(array([0, 100, 300]))
    head.set_speed(1, NOW + 7, int(play_times[1]))
    assert due(head, play_times)[1:] == [NOW + 7, NOW + 207]


def test_delay_keeps_intervals() -> None:
    head = Playhead(NOW, speed=1)
    play_times = head.schedule(array([0, 100]))
    head.delay(55)
    assert due(head, play_times) == [NOW + 55, NOW + 155]
