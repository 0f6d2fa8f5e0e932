"""What a bridge waits for is said once, when it has lasted."""

from __future__ import annotations

from tensorpool.bridge.agent import WaitLog

S = 1_000_000_000


def test_it_is_said_when_it_has_lasted_and_only_once() -> None:
    waiting = WaitLog()
    said = {second: waiting.look(second * S, ["port"]) for second in range(60)}
    assert {second: words for second, words in said.items() if words} == {5: ["port"]}


def test_what_came_and_went_again_is_said_again() -> None:
    waiting = WaitLog()
    for second in range(6):
        waiting.look(second * S, ["port"])
    assert waiting.look(6 * S, []) == []
    said = [waiting.look(second * S, ["port"]) for second in range(7, 14)]
    assert said == [[], [], [], [], [], ["port"], []]


def test_a_look_now_and_then_is_enough() -> None:
    waiting = WaitLog()
    assert [waiting.is_due(at * S // 4) for at in range(6)] == [True, False, False, False, True, False]
