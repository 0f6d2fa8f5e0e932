"""The wait log: lasting obstacles are logged once."""

from __future__ import annotations

from tensorpool.bridge.agent import WaitLog

S = 1_000_000_000


def test_lasting_obstacle_is_logged_once() -> None:
    wait_log = WaitLog()
    logged = {second: wait_log.sample(second * S, ["port"]) for second in range(60)}
    assert {second: obstacles for second, obstacles in logged.items() if obstacles} == {5: ["port"]}


def test_returning_obstacle_is_logged_again() -> None:
    wait_log = WaitLog()
    for second in range(6):
        wait_log.sample(second * S, ["port"])
    assert wait_log.sample(6 * S, []) == []
    logged = [wait_log.sample(second * S, ["port"]) for second in range(7, 14)]
    assert logged == [[], [], [], [], [], ["port"], []]


def test_samples_are_due_once_a_second() -> None:
    wait_log = WaitLog()
    assert [wait_log.is_due(quarter * S // 4) for quarter in range(6)] == [
        True,
        False,
        False,
        False,
        True,
        False,
    ]
