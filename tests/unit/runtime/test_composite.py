"""Several agents on one thread."""

from __future__ import annotations

import pytest

from tensorpool.errors import RoleFailed
from tensorpool.runtime import CompositeAgent
from tests.unit.runtime.scripted import Scripted, runner_of


def test_composed_agents_start_in_order_and_close_in_reverse():
    log: list[str] = []
    first, second = Scripted(1, 2, name="first", log=log), Scripted(10, 20, name="second", log=log)
    runner = runner_of(CompositeAgent(first, second))
    runner.open()
    assert runner.name == "first+second"
    assert (runner.step(), runner.step()) == (11, 22)
    runner.close()
    assert log[:2] == ["first started", "second started"]
    assert log[-2:] == ["second closed", "first closed"]


def test_one_that_fails_does_not_keep_the_others_from_their_turn():
    log: list[str] = []
    failing = Scripted(*[OSError("disk")] * 3, name="failing", log=log)
    runner = runner_of(CompositeAgent(failing, Scripted(1, 1, 1, name="other", log=log)))
    runner.run()
    assert runner.counters.errors.value == 3
    assert log.count("other turn") == 4


def test_a_fatal_fault_among_composed_agents_comes_first():
    failing = CompositeAgent(
        Scripted(OSError("disk")), Scripted(RoleFailed("gone")), Scripted(ValueError("x"))
    )
    with pytest.raises(RoleFailed, match="gone"):
        runner_of(failing).run()


def test_composed_agents_that_finish_are_closed_one_by_one():
    log: list[str] = []
    runner_of(CompositeAgent(Scripted(name="short", log=log), Scripted(1, name="long", log=log))).run()
    assert log.index("short closed") < log.index("long closed")
    assert [line for line in log if line.endswith("closed")] == ["short closed", "long closed"]


def test_one_that_finishes_does_not_cost_the_next_its_turn():
    log: list[str] = []
    both = CompositeAgent(Scripted(name="short", log=log), Scripted(5, name="long", log=log))
    both.on_start()
    assert both.do_work() == 5
    both.on_close()


def test_one_that_finishes_and_cannot_be_closed_does_not_cost_the_next_its_turn():
    log: list[str] = []
    short = Scripted(name="short", log=log)

    def on_close() -> None:
        raise OSError("disk")

    short.on_close = on_close  # type: ignore[method-assign]
    both = CompositeAgent(short, Scripted(5, 5, name="long", log=log))
    both.on_start()
    with pytest.raises(OSError, match="disk"):
        both.do_work()
    assert log[-1] == "long turn"
    assert both.do_work() == 5, "it is not closed again"
    both.on_close()


def test_when_one_cannot_start_those_before_it_are_closed():
    log: list[str] = []
    bad = Scripted(name="bad", log=log)

    def on_start() -> None:
        raise OSError("no room")

    bad.on_start = on_start  # type: ignore[method-assign]
    with pytest.raises(OSError, match="no room"):
        runner_of(CompositeAgent(Scripted(name="good", log=log), bad, Scripted(name="late", log=log))).run()
    assert log == ["good started", "bad closed", "good closed"]
