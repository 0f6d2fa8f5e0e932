"""When frames are due: exactly as far apart as recorded, through pauses, jumps, steps and other speeds."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorpool.replayer.state import Playhead

NOW = 5_000_000_000
MS = 1_000_000

times_of_rows = st.lists(st.integers(0, 10**12), min_size=1, max_size=40).map(sorted)
speeds = st.floats(0.001, 1000, allow_nan=False)


def array(values: list[int]) -> np.ndarray:
    return np.array(values, np.int64)


def due(head: Playhead, plays: np.ndarray) -> list[int]:
    found = head.due(plays)
    assert found is not None
    return found.tolist()


@given(times_of_rows, st.integers(1, 39))
def test_at_the_recorded_speed_every_interval_is_the_recorded_one(times: list[int], cut: int) -> None:
    head = Playhead(NOW, speed=1)
    plays = np.concatenate([head.place(array(times[:cut])), head.place(array(times[cut:]))])
    dues = due(head, plays)
    assert dues[0] == NOW
    assert [b - a for a, b in pairwise(dues)] == [b - a for a, b in pairwise(times)]


@given(times_of_rows, speeds)
def test_at_another_speed_every_frame_is_due_to_the_nanosecond(times: list[int], speed: float) -> None:
    head = Playhead(NOW, speed=speed)
    for given_ns, due_ns in zip(times, due(head, head.place(array(times))), strict=True):
        exact = NOW + Fraction(given_ns - times[0]) / Fraction(speed)
        # A float has 53 bits: of hours of nanoseconds the last one may be off.
        assert abs(due_ns - exact) <= 1 + exact / 2**50


@given(times_of_rows, st.integers(0, 39), st.integers(0, 10**10), st.integers(0, 10**10))
def test_a_pause_puts_off_what_is_left_by_its_length(
    times: list[int], played: int, pause_at: int, length: int
) -> None:
    head = Playhead(NOW, speed=1)
    plays = head.place(array(times))
    before = due(head, plays)
    head.pause(NOW + pause_at)
    assert head.is_paused
    head.resume(NOW + pause_at + length)
    assert due(head, plays)[played:] == [ns + length for ns in before[played:]]


def test_who_is_paused_twice_is_paused_since_the_first_time() -> None:
    head = Playhead(NOW, speed=1)
    plays = head.place(array([0, 100]))
    head.pause(NOW + 10)
    head.pause(NOW + 50)
    head.resume(NOW + 60)
    head.resume(NOW + 90)
    assert due(head, plays) == [NOW + 50, NOW + 150]


def test_after_steps_the_next_frame_is_as_far_from_the_last_as_recorded() -> None:
    head = Playhead(NOW, speed=1)
    plays = head.place(array([0, 100 * MS, 150 * MS, 250 * MS]))
    head.pause(NOW + 10 * MS)
    head.stepped(int(plays[1]))
    head.stepped(int(plays[2]))
    head.resume(NOW + 1000 * MS)
    assert due(head, plays)[3] == NOW + 1000 * MS + 100 * MS


def test_a_jump_makes_the_next_frame_due_now_and_keeps_what_follows_apart() -> None:
    head = Playhead(NOW, speed=2)
    head.place(array([0, 10 * MS, 20 * MS]))
    head.jump(NOW + 3 * MS)
    plays = head.place(array([500 * MS, 510 * MS]))
    assert due(head, plays) == [NOW + 3 * MS, NOW + 8 * MS]
    # Back is as good as forth.
    head.jump(NOW + 4 * MS)
    assert due(head, head.place(array([5 * MS, 6 * MS]))) == [NOW + 4 * MS, NOW + 4 * MS + MS // 2]


def test_a_jump_while_paused_waits_for_the_end_of_the_pause() -> None:
    head = Playhead(NOW, speed=1)
    head.place(array([0, 10]))
    head.pause(NOW + 5)
    head.jump(NOW + 7)
    plays = head.place(array([100, 130]))
    head.resume(NOW + 1000)
    assert due(head, plays) == [NOW + 1000, NOW + 1030]


@given(times_of_rows, st.integers(1, 4))
def test_passes_follow_each_other_as_frames_do(times: list[int], passes: int) -> None:
    head = Playhead(NOW, speed=1)
    dues = due(head, head.place(array(times)))
    for _ in range(passes):
        head.begin_pass()
        more = due(head, head.place(array(times)))
        moments, span = len(set(times)), times[-1] - times[0]
        assert more[0] - dues[-1] == (span // (moments - 1) if moments > 1 else 1_000_000_000)
        assert [b - a for a, b in pairwise(more)] == [b - a for a, b in pairwise(times)]
        dues = more


def test_silence_longer_than_allowed_is_shortened() -> None:
    head = Playhead(NOW, speed=1, max_pause_ns=30)
    plays = np.concatenate([head.place(array([0, 10, 500])), head.place(array([900, 910]))])
    assert due(head, plays) == [NOW, NOW + 10, NOW + 40, NOW + 70, NOW + 80]


def test_a_rate_stands_in_for_the_recorded_times() -> None:
    head = Playhead(NOW, speed=1, every_ns=MS)
    plays = np.concatenate([head.place(array([0, 10, 10])), head.place(array([10**12]))])
    assert due(head, plays) == [NOW + number * MS for number in range(4)]
    head.begin_pass()
    assert due(head, head.place(array([0]))) == [NOW + 4 * MS]


def test_as_fast_as_it_goes_nothing_is_due_at_any_time() -> None:
    head = Playhead(NOW, speed=None)
    assert head.due(head.place(array([0, 10]))) is None


@pytest.mark.parametrize(("before", "after"), [(1, 2), (4, 0.5)])
def test_a_change_of_speed_holds_from_where_it_stands(before: float, after: float) -> None:
    head = Playhead(NOW, speed=before)
    plays = head.place(array([0, 100 * MS, 300 * MS]))
    now = NOW + 40 * MS
    left = due(head, plays)[1] - now
    head.change_speed(after, now, int(plays[1]))
    found = due(head, plays)
    assert found[1] == now + round(max(0, left) * before / after)
    assert found[2] - found[1] == 200 * MS / after


def test_from_full_speed_to_the_recorded_one_the_next_frame_is_due_at_once() -> None:
    head = Playhead(NOW, speed=None)
    plays = head.place(array([0, 100, 300]))
    head.change_speed(1, NOW + 7, int(plays[1]))
    assert due(head, plays)[1:] == [NOW + 7, NOW + 207]


def test_what_was_put_off_stays_apart() -> None:
    head = Playhead(NOW, speed=1)
    plays = head.place(array([0, 100]))
    head.delay(55)
    assert due(head, plays) == [NOW + 55, NOW + 155]
