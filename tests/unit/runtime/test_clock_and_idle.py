"""Clocks and idle strategies."""

from __future__ import annotations

import threading
import time

import pytest

from tensorpool.clock import SYSTEM_CLOCK, ManualClock
from tensorpool.errors import ConfigError
from tensorpool.runtime import IDLE_NAMES, idle_strategy
from tensorpool.runtime.agent import BackoffIdle

MS = 1_000_000


def test_manual_clock_moves_only_on_request():
    clock = ManualClock(monotonic_ns=5, wall_ns=100)
    assert (clock.monotonic_ns(), clock.wall_ns()) == (5, 100)
    clock.advance(0.5, ns=7)
    assert (clock.monotonic_ns(), clock.wall_ns()) == (500_000_012, 500_000_107)
    clock.sleep(0.25)
    assert (clock.monotonic_ns(), clock.sleeps) == (750_000_012, [0.25])


def test_manual_clock_steps_back_only_the_wall_clock():
    clock = ManualClock(monotonic_ns=5, wall_ns=2_000_000_000)
    clock.step_wall(-1)
    assert (clock.monotonic_ns(), clock.wall_ns()) == (5, 1_000_000_000)
    with pytest.raises(ValueError, match="cannot go back"):
        clock.advance(-1)


def test_system_clock_is_the_clock_of_the_wire():
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    now = SYSTEM_CLOCK.monotonic_ns()
    assert before <= now <= time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    assert abs(SYSTEM_CLOCK.wall_ns() - time.time_ns()) < 60e9


def test_backoff_spins_then_yields_then_sleeps_longer_and_longer():
    clock = ManualClock()
    idle = idle_strategy("backoff", clock=clock)
    for _ in range(15):
        idle.idle(0)
    assert clock.sleeps == []
    for _ in range(8):
        idle.idle(0)
    assert [round(slept * 1e6) for slept in clock.sleeps] == [50, 100, 200, 400, 800, 1600, 3200, 5000]


def test_backoff_rests_longer_only_after_a_long_time_without_work():
    clock = ManualClock()
    idle = idle_strategy("backoff", clock=clock)
    while sum(clock.sleeps) < 5:
        before = sum(clock.sleeps)
        idle.idle(0)
        assert not clock.sleeps or clock.sleeps[-1] <= max(5e-3, before / 64)
    assert clock.sleeps[-1] == 20e-3
    idle.idle(1)
    for _ in range(16):
        idle.idle(0)
    assert clock.sleeps[-1] == pytest.approx(50e-6)


def test_agent_with_a_wait_of_its_own_waits_there_once_it_has_rested():
    clock = ManualClock()
    waits: list[float] = []
    idle = BackoffIdle(clock, wait=waits.append)
    while not waits:
        idle.idle(0)
    assert max(clock.sleeps) < 20e-3
    before = list(clock.sleeps)
    idle.idle(0)
    assert waits == [0.1, 0.1]
    assert clock.sleeps == before
    idle.idle(1)
    for _ in range(16):
        idle.idle(0)
    assert clock.sleeps[-1] == pytest.approx(50e-6), "after work it looks again at once"


def test_work_makes_backoff_start_over():
    clock = ManualClock()
    idle = idle_strategy("backoff", clock=clock)
    for _ in range(20):
        idle.idle(0)
    assert clock.sleeps[-1] == pytest.approx(800e-6)
    idle.idle(1)
    for _ in range(16):
        idle.idle(0)
    assert clock.sleeps[-1] == pytest.approx(50e-6)


def test_idle_period_bounds_every_wait():
    clock = ManualClock()
    idle = idle_strategy("backoff", clock=clock, period_ns=20_000)
    for _ in range(25):
        idle.idle(0)
    assert set(clock.sleeps) == {20e-6}


def test_sleep_waits_at_once_and_not_after_work():
    clock = ManualClock()
    idle = idle_strategy("sleep", clock=clock, period_ns=3 * MS)
    idle.idle(1)
    idle.idle(0)
    assert clock.sleeps == [0.003]


@pytest.mark.parametrize("name", ["busy-spin", "yield"])
def test_busy_spin_and_yield_do_not_wait_by_the_clock(name):
    clock = ManualClock()
    idle = idle_strategy(name, clock=clock)
    for _ in range(1000):
        idle.idle(0)
    assert clock.sleeps == []


def test_yields_without_work_give_the_core_away_now_and_then(monkeypatch):
    sleeps: list[float] = []
    sleep, thread = time.sleep, threading.current_thread()

    def count(seconds: float) -> None:
        # Threads that other tests have left sleep by the same function.
        (sleeps.append if threading.current_thread() is thread else sleep)(seconds)

    monkeypatch.setattr("tensorpool.runtime.agent.time.sleep", count)
    idle = idle_strategy("yield")
    for _ in range(160):
        idle.idle(0)
    assert len(sleeps) == 10
    idle.idle(1)
    assert len(sleeps) == 10


def test_unknown_idle_strategy_error_names_the_valid_names():
    assert IDLE_NAMES == ("backoff", "busy-spin", "yield", "sleep")
    with pytest.raises(ConfigError, match="'nap': use backoff, busy-spin, yield or sleep"):
        idle_strategy("nap")
