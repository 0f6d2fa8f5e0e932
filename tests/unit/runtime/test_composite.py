"""Composite agents: several agents on one thread."""

from __future__ import annotations

import pytest

from tensorpool.errors import RoleFailed
from tensorpool.runtime import CompositeAgent
from tests.unit.runtime.scripted_agent import ScriptedAgent, runner_of


def test_composed_agents_start_in_order_and_close_in_reverse():
    log: list[str] = []
    first, second = ScriptedAgent(1, 2, name="first", log=log), ScriptedAgent(10, 20, name="second", log=log)
    runner = runner_of(CompositeAgent(first, second))
    runner.open()
    assert runner.name == "first+second"
    assert (runner.step(), runner.step()) == (11, 22)
    runner.close()
    assert log[:2] == ["first started", "second started"]
    assert log[-2:] == ["second closed", "first closed"]


def test_failing_agent_does_not_stop_the_others():
    log: list[str] = []
    failing = ScriptedAgent(*[OSError("disk")] * 3, name="failing", log=log)
    runner = runner_of(CompositeAgent(failing, ScriptedAgent(1, 1, 1, name="other", log=log)))
    runner.run()
    assert runner.counters.errors.value == 3
    assert log.count("other cycle") == 4


def test_role_failed_takes_precedence_among_composed_agents():
    failing = CompositeAgent(
        ScriptedAgent(OSError("disk")), ScriptedAgent(RoleFailed("gone")), ScriptedAgent(ValueError("x"))
    )
    with pytest.raises(RoleFailed, match="gone"):
        runner_of(failing).run()


def test_composed_agents_are_closed_when_they_finish():
    log: list[str] = []
    runner_of(
        CompositeAgent(ScriptedAgent(name="short", log=log), ScriptedAgent(1, name="long", log=log))
    ).run()
    assert log.index("short closed") < log.index("long closed")
    assert [line for line in log if line.endswith("closed")] == ["short closed", "long closed"]


def test_finished_agent_does_not_skip_the_next_agent():
    log: list[str] = []
    both = CompositeAgent(ScriptedAgent(name="short", log=log), ScriptedAgent(5, name="long", log=log))
    both.on_start()
    assert both.do_work() == 5
    both.on_close()


def test_failed_close_does_not_skip_the_next_agent():
    log: list[str] = []
    short = ScriptedAgent(name="short", log=log)

    def on_close() -> None:
        raise OSError("disk")

    short.on_close = on_close  # type: ignore[method-assign]
    both = CompositeAgent(short, ScriptedAgent(5, 5, name="long", log=log))
    both.on_start()
    with pytest.raises(OSError, match="disk"):
        both.do_work()
    assert log[-1] == "long cycle"
    assert both.do_work() == 5, "it is not closed again"
    both.on_close()


def test_agents_started_before_a_failed_start_are_closed():
    log: list[str] = []
    bad = ScriptedAgent(name="bad", log=log)

    def on_start() -> None:
        raise OSError("no room")

    bad.on_start = on_start  # type: ignore[method-assign]
    with pytest.raises(OSError, match="no room"):
        runner_of(
            CompositeAgent(ScriptedAgent(name="good", log=log), bad, ScriptedAgent(name="late", log=log))
        ).run()
    assert log == ["good started", "bad closed", "good closed"]
