"""What a runner does around an agent's turns."""

from __future__ import annotations

import logging
import os
import signal
import threading

import pytest

from tensorpool.clock import ManualClock
from tensorpool.errors import RoleFailed
from tensorpool.runtime import Readiness, Runner
from tests.unit.runtime.scripted import Scripted, runner_of


def test_run_starts_works_and_closes_in_this_order():
    agent = Scripted(2, 3)
    runner = runner_of(agent)
    runner.run()
    assert agent.log == ["scripted started", *["scripted turn"] * 3, "scripted closed"]
    assert runner.counters.snapshot() == {"duty_cycles": 3, "work": 5, "errors": 0, "longest_cycle": 0}


def test_an_error_in_a_turn_is_counted_and_the_next_turn_comes(caplog):
    agent = Scripted(1, OSError("disk"), 4)
    runner = runner_of(agent)
    with caplog.at_level(logging.ERROR):
        runner.run()
    assert agent.log.count("scripted turn") == 4
    assert (runner.counters.errors.value, runner.counters.work.value) == (1, 5)
    assert "scripted: a turn failed: OSError: disk" in caplog.text


def test_repeated_errors_are_logged_once_a_period_with_the_number_left_out(caplog):
    clock = ManualClock()
    failing = [OSError("disk")] * 10
    agent = Scripted(*failing[:9], lambda: clock.advance(5), failing[9])
    runner = Runner(agent, idle="yield", clock=clock)
    with caplog.at_level(logging.ERROR):
        runner.run()
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        "scripted: a turn failed: OSError: disk",
        "scripted: a turn failed: OSError: disk (8 more like this were suppressed)",
    ]
    assert runner.counters.errors.value == 10


def test_what_was_suppressed_is_told_at_the_end(caplog):
    with caplog.at_level(logging.ERROR):
        runner_of(Scripted(*[OSError("disk")] * 4)).run()
    assert caplog.records[-1].getMessage() == "scripted: 3 more errors were suppressed"


def test_errors_of_different_kinds_do_not_suppress_each_other(caplog):
    with caplog.at_level(logging.ERROR):
        runner_of(Scripted(OSError("disk"), ValueError("bad"))).run()
    assert [record.getMessage().split(": ", 2)[2] for record in caplog.records] == [
        "OSError: disk",
        "ValueError: bad",
    ]


def test_a_fatal_fault_stops_the_role_in_good_order_and_is_raised():
    agent = Scripted(1, RoleFailed("the lock is gone", role="driver"), 1)
    runner = runner_of(agent)
    with pytest.raises(RoleFailed, match="the lock is gone"):
        runner.run()
    assert agent.log == ["scripted started", "scripted turn", "scripted turn", "scripted closed"]


def test_trouble_at_the_close_does_not_hide_the_fault(caplog):
    agent = Scripted(RoleFailed("the lock is gone"))
    agent.on_close = lambda: 1 / 0  # type: ignore[method-assign,assignment]
    with pytest.raises(RoleFailed, match="the lock is gone"):
        runner_of(agent).run()
    assert "could not be closed after RoleFailed" in caplog.text


def test_an_agent_that_cannot_start_is_closed_and_its_error_raised():
    agent = Scripted(1)

    def on_start() -> None:
        raise OSError("no room")

    agent.on_start = on_start  # type: ignore[method-assign]
    with pytest.raises(OSError, match="no room"):
        runner_of(agent).run()
    assert agent.log == ["scripted closed"]


def test_a_runner_runs_once():
    runner = runner_of(Scripted())
    runner.run()
    with pytest.raises(RuntimeError, match="runs once"):
        runner.run()


def test_in_the_callers_loop_each_step_is_one_turn():
    agent = Scripted(1, 0, 7)
    runner = runner_of(agent)
    runner.open()
    assert [runner.step(), runner.step(), runner.step()] == [1, 0, 7]
    assert not runner.stopped
    assert (runner.step(), runner.stopped) == (0, True)
    runner.close()
    runner.close()
    assert agent.log.count("scripted closed") == 1


def test_a_thread_runs_the_agent_start_to_close(wait_until):
    threads: set[str] = set()

    class Working:
        name = "worker"

        def on_start(self) -> None:
            threads.add(threading.current_thread().name)

        def do_work(self) -> int:
            return 1

        def on_close(self) -> None:
            threads.add("closed on " + threading.current_thread().name)

    with Runner(Working()) as runner:
        wait_until(lambda: runner.counters.work.value > 100)
    assert threads == {"worker", "closed on worker"}


def test_a_thread_that_cannot_start_says_so_to_the_caller():
    agent = Scripted()

    def on_start() -> None:
        raise OSError("no room")

    agent.on_start = on_start  # type: ignore[method-assign]
    with pytest.raises(OSError, match="no room"):
        Runner(agent).start()


def test_close_raises_what_ended_the_thread(wait_until):
    runner = Runner(Scripted(RoleFailed("the lock is gone")))
    runner.start()
    wait_until(lambda: runner.error is not None)
    with pytest.raises(RoleFailed, match="the lock is gone"):
        runner.close()


def test_a_turn_that_takes_too_long_is_told_at_the_close():
    hold, held = threading.Event(), threading.Event()

    class Stuck:
        def do_work(self) -> int:
            held.set()
            hold.wait()
            return 0

    runner = Runner(Stuck())
    runner.start()
    held.wait()
    with pytest.raises(TimeoutError, match=r"Stuck did not end within 0\.01 s"):
        runner.close(timeout=0.01)
    hold.set()
    runner.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_run_and_the_handlers_are_put_back(number):
    before = [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    agent = Scripted(1, lambda: os.kill(os.getpid(), number), *[1] * 1000)
    runner_of(agent, on_hangup=lambda: None).run()
    assert agent.log[-1] == "scripted closed"
    assert agent.log.count("scripted turn") < 10
    assert [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)] == before


def test_a_second_interrupt_is_the_way_out_of_a_stop_that_hangs():
    def interrupt_twice() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    agent = Scripted(interrupt_twice)
    with pytest.raises(KeyboardInterrupt):
        runner_of(agent).run()
    assert agent.log[-1] == "scripted closed"


def test_hangup_is_served_between_turns():
    agent = Scripted(lambda: os.kill(os.getpid(), signal.SIGHUP), 1)
    runner_of(agent, on_hangup=lambda: agent.log.append("reload")).run()
    assert agent.log == [
        "scripted started",
        "scripted turn",
        "reload",
        "scripted turn",
        "scripted turn",
        "scripted closed",
    ]


def test_a_reload_that_fails_is_counted_and_the_role_goes_on():
    agent = Scripted(lambda: os.kill(os.getpid(), signal.SIGHUP), 1)
    runner = runner_of(agent, on_hangup=lambda: 1 / 0)
    runner.run()
    assert (runner.counters.errors.value, runner.counters.work.value) == (1, 1)


def test_it_is_ready_when_its_agent_is(tmp_path):
    path = tmp_path / "ready"
    agent = Scripted(1, 1, 1)
    agent.is_ready = lambda: agent.log.count("scripted turn") >= 2  # type: ignore[attr-defined]
    runner = runner_of(agent, readiness=Readiness(path, environ={}))
    runner.open()
    runner.step()
    assert not path.exists()
    runner.step()
    assert path.read_text() == f"{os.getpid()}\n"
    runner.close()
    assert not path.exists()


def test_the_longest_turn_is_remembered():
    clock = ManualClock()
    agent = Scripted(lambda: clock.advance(0.25), lambda: clock.advance(0.125))
    runner = Runner(agent, idle="yield", clock=clock)
    runner.run()
    assert runner.counters.longest_cycle.value == 250_000_000
