"""Runners: start, duty cycles, errors, signals, readiness and close of an agent."""

from __future__ import annotations

import logging
import os
import signal
import threading

import pytest

from tensorpool.clock import ManualClock
from tensorpool.errors import RoleFailed
from tensorpool.runtime import Readiness, Runner
from tests.unit.runtime.scripted_agent import ScriptedAgent, runner_of


def test_run_starts_works_and_closes_in_this_order():
    agent = ScriptedAgent(2, 3)
    runner = runner_of(agent)
    runner.run()
    assert agent.log == ["scripted started", *["scripted cycle"] * 3, "scripted closed"]
    assert runner.counters.snapshot() == {"duty_cycles": 3, "work": 5, "errors": 0, "longest_cycle": 0}


def test_error_in_a_duty_cycle_is_counted_and_survived(caplog):
    agent = ScriptedAgent(1, OSError("disk"), 4)
    runner = runner_of(agent)
    with caplog.at_level(logging.ERROR):
        runner.run()
    assert agent.log.count("scripted cycle") == 4
    assert (runner.counters.errors.value, runner.counters.work.value) == (1, 5)
    assert "scripted: a duty cycle failed: OSError: disk" in caplog.text


def test_repeated_errors_are_logged_once_a_period(caplog):
    clock = ManualClock()
    failing = [OSError("disk")] * 10
    agent = ScriptedAgent(*failing[:9], lambda: clock.advance(5), failing[9])
    runner = Runner(agent, idle="yield", clock=clock)
    with caplog.at_level(logging.ERROR):
        runner.run()
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        "scripted: a duty cycle failed: OSError: disk",
        "scripted: a duty cycle failed: OSError: disk (8 more like this were suppressed)",
    ]
    assert runner.counters.errors.value == 10


def test_suppressed_errors_are_counted_at_the_end(caplog):
    with caplog.at_level(logging.ERROR):
        runner_of(ScriptedAgent(*[OSError("disk")] * 4)).run()
    assert caplog.records[-1].getMessage() == "scripted: 3 more errors were suppressed"


def test_errors_of_different_kinds_do_not_suppress_each_other(caplog):
    with caplog.at_level(logging.ERROR):
        runner_of(ScriptedAgent(OSError("disk"), ValueError("bad"))).run()
    assert [record.getMessage().split(": ", 2)[2] for record in caplog.records] == [
        "OSError: disk",
        "ValueError: bad",
    ]


def test_role_failed_closes_the_agent_and_is_raised():
    agent = ScriptedAgent(1, RoleFailed("the lock is gone", role="driver"), 1)
    runner = runner_of(agent)
    with pytest.raises(RoleFailed, match="the lock is gone"):
        runner.run()
    assert agent.log == ["scripted started", "scripted cycle", "scripted cycle", "scripted closed"]


def test_error_at_close_does_not_hide_role_failed(caplog):
    agent = ScriptedAgent(RoleFailed("the lock is gone"))
    agent.on_close = lambda: 1 / 0  # type: ignore[method-assign,assignment]
    with pytest.raises(RoleFailed, match="the lock is gone"):
        runner_of(agent).run()
    assert "could not be closed after RoleFailed" in caplog.text


def test_failed_start_closes_the_agent_and_is_raised():
    agent = ScriptedAgent(1)

    def on_start() -> None:
        raise OSError("no room")

    agent.on_start = on_start  # type: ignore[method-assign]
    with pytest.raises(OSError, match="no room"):
        runner_of(agent).run()
    assert agent.log == ["scripted closed"]


def test_runner_runs_once():
    runner = runner_of(ScriptedAgent())
    runner.run()
    with pytest.raises(RuntimeError, match="has run already"):
        runner.run()


def test_step_runs_one_duty_cycle():
    agent = ScriptedAgent(1, 0, 7)
    runner = runner_of(agent)
    runner.open()
    assert [runner.step(), runner.step(), runner.step()] == [1, 0, 7]
    assert not runner.stopped
    assert (runner.step(), runner.stopped) == (0, True)
    runner.close()
    runner.close()
    assert agent.log.count("scripted closed") == 1


def test_runner_thread_starts_and_closes_the_agent(wait_until):
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


def test_failed_start_on_a_thread_is_raised_to_the_caller():
    agent = ScriptedAgent()

    def on_start() -> None:
        raise OSError("no room")

    agent.on_start = on_start  # type: ignore[method-assign]
    with pytest.raises(OSError, match="no room"):
        Runner(agent).start()


def test_close_raises_the_error_that_ended_the_thread(wait_until):
    runner = Runner(ScriptedAgent(RoleFailed("the lock is gone")))
    runner.start()
    wait_until(lambda: runner.error is not None)
    with pytest.raises(RoleFailed, match="the lock is gone"):
        runner.close()


def test_close_times_out_during_a_long_duty_cycle():
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
def test_signal_ends_the_run_and_handlers_are_restored(number):
    signals = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.getsignal(handled) for handled in signals]
    agent = ScriptedAgent(1, lambda: os.kill(os.getpid(), number), *[1] * 1000)
    runner_of(agent, on_hangup=lambda: None).run()
    assert agent.log[-1] == "scripted closed"
    assert agent.log.count("scripted cycle") < 10
    assert [signal.getsignal(handled) for handled in signals] == before


def test_second_interrupt_raises_keyboard_interrupt():
    def interrupt_twice() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    agent = ScriptedAgent(interrupt_twice)
    with pytest.raises(KeyboardInterrupt):
        runner_of(agent).run()
    assert agent.log[-1] == "scripted closed"


def test_hangup_is_handled_between_duty_cycles():
    agent = ScriptedAgent(lambda: os.kill(os.getpid(), signal.SIGHUP), 1)
    runner_of(agent, on_hangup=lambda: agent.log.append("reload")).run()
    assert agent.log == [
        "scripted started",
        "scripted cycle",
        "reload",
        "scripted cycle",
        "scripted cycle",
        "scripted closed",
    ]


def test_failed_reload_is_counted_and_the_role_continues():
    agent = ScriptedAgent(lambda: os.kill(os.getpid(), signal.SIGHUP), 1)
    runner = runner_of(agent, on_hangup=lambda: 1 / 0)
    runner.run()
    assert (runner.counters.errors.value, runner.counters.work.value) == (1, 1)


def test_runner_is_ready_when_its_agent_is(tmp_path):
    path = tmp_path / "ready"
    agent = ScriptedAgent(1, 1, 1)
    agent.is_ready = lambda: agent.log.count("scripted cycle") >= 2  # type: ignore[attr-defined]
    runner = runner_of(agent, readiness=Readiness(path, environ={}))
    runner.open()
    runner.step()
    assert not path.exists()
    runner.step()
    assert path.read_text() == f"{os.getpid()}\n"
    runner.close()
    assert not path.exists()


def test_longest_duty_cycle_is_counted():
    clock = ManualClock()
    agent = ScriptedAgent(lambda: clock.advance(0.25), lambda: clock.advance(0.125))
    runner = Runner(agent, idle="yield", clock=clock)
    runner.run()
    assert runner.counters.longest_cycle.value == 250_000_000
