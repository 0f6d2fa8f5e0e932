"""Questions to services, and what is made of their answers."""

from __future__ import annotations

import json
from typing import Any

from tensorpool.monitor.reports import (
    BridgeStatus,
    DriverLeases,
    DriverStatus,
    RecorderLedger,
    RecorderStatus,
    RejectedMessage,
    ServiceAlive,
    StatusEvent,
)
from tensorpool.monitor.services import ServicePoller
from tensorpool.service import Event
from tensorpool.service.events import ALL_SERVICES, RESULT

S = 1_000_000_000


def asked(asking: ServicePoller, now_ns: int = 0) -> dict[tuple[str, str], Event]:
    return {(one.tag, one.key): one for one in asking.due(now_ns)}


def answer(question: Event, value: Any, tag: str | None = None) -> StatusEvent:
    return StatusEvent(question.correlation_id, tag or question.tag, question.key + RESULT, json.dumps(value))


def test_everybody_is_asked_once_a_period() -> None:
    asking = ServicePoller(S)
    first = asked(asking, 5 * S)
    assert set(first) == {
        (ALL_SERVICES, "ping()"),
        ("service:driver", "status()"),
        ("service:driver", "leases()"),
        ("service:recorder", "status()"),
        ("service:recorder", "ledger()"),
        ("service:bridge", "status()"),
    }
    assert len({one.correlation_id for one in first.values()}) == len(first)
    assert asked(asking, 6 * S - 1) == {}
    again = asked(asking, 6 * S)
    assert set(again) == set(first)
    assert {one.correlation_id for one in again.values()}.isdisjoint(
        one.correlation_id for one in first.values()
    )


def test_answers_become_facts_of_who_gave_them() -> None:
    asking = ServicePoller(S)
    questions = asked(asking)

    def told(to: tuple[str, str], value: Any, tag: str) -> list[object]:
        facts, more = asking.on_word(answer(questions[to], value, tag))
        assert more == []
        return facts

    ping = {"name": "camera", "instance": "left", "pid": 9}
    assert told((ALL_SERVICES, "ping()"), ping, "service:camera:left") == [
        ServiceAlive("service:camera:left", "camera", "left", 9)
    ]
    assert told(("service:driver", "status()"), {"a": 1}, "service:driver") == [
        DriverStatus("service:driver", {"a": 1})
    ]
    assert told(("service:recorder", "status()"), {"b": 2}, "service:recorder:r") == [
        RecorderStatus("service:recorder:r", {"b": 2})
    ]
    assert told(("service:recorder", "ledger()"), [{"c": 3}], "service:recorder:r") == [
        RecorderLedger("service:recorder:r", ({"c": 3},))
    ]
    assert told(("service:driver", "leases()"), [], "service:driver") == [DriverLeases("service:driver", ())]


def test_long_answers_are_asked_for_part_by_part() -> None:
    asking = ServicePoller(S)
    questions = asked(asking)
    facts, more = asking.on_word(answer(questions["service:driver", "leases()"], [{"lease_id": "7"}]))
    assert facts == []
    assert [(one.tag, one.key, one.value) for one in more] == [
        ("service:driver", "leases()", '{"first": "8"}')
    ]
    facts, more = asking.on_word(answer(more[0], [{"lease_id": "9"}]))
    assert facts == []
    assert [one.value for one in more] == ['{"first": "10"}']
    facts, more = asking.on_word(answer(more[0], []))
    assert (facts, more) == ([DriverLeases("service:driver", ({"lease_id": "7"}, {"lease_id": "9"}))], [])
    status = {"pid": 3, "total": 2, "mappings": [{"m": 1}]}
    facts, more = asking.on_word(answer(questions["service:bridge", "status()"], status, "service:bridge:b"))
    assert facts == []
    assert [(one.tag, one.value) for one in more] == [("service:bridge:b", '{"first": 1}')]
    last = {"pid": 3, "total": 2, "mappings": [{"m": 2}]}
    assert asking.on_word(answer(more[0], last)) == (
        [BridgeStatus("service:bridge:b", 3, ({"m": 1}, {"m": 2}))],
        [],
    )


def test_two_who_answer_one_question_do_not_mix() -> None:
    asking = ServicePoller(S)
    question = asked(asking)["service:driver", "leases()"]
    _, one = asking.on_word(answer(question, [{"lease_id": "1"}], "service:driver:a"))
    _, other = asking.on_word(answer(question, [{"lease_id": "2"}], "service:driver:b"))
    assert asking.on_word(answer(one[0], []))[0] == [DriverLeases("service:driver:a", ({"lease_id": "1"},))]
    assert asking.on_word(answer(other[0], []))[0] == [DriverLeases("service:driver:b", ({"lease_id": "2"},))]


def test_what_was_not_asked_or_makes_no_sense_is_no_fact() -> None:
    asking = ServicePoller(S)
    questions = asked(asking)
    status = questions["service:driver", "status()"]
    assert asking.on_word(StatusEvent(12345, "service:driver", "status()" + RESULT, "{}")) == ([], [])
    # An echo of the question, or an error, is no result.
    assert asking.on_word(StatusEvent(status.correlation_id, "service:driver", "status()", "{}")) == ([], [])
    for value in (None, 5, "text"):
        assert asking.on_word(answer(status, value)) == ([RejectedMessage("service")], [])
    for to in ((ALL_SERVICES, "ping()"), ("service:driver", "leases()"), ("service:bridge", "status()")):
        assert asking.on_word(answer(questions[to], {"odd": 1})) == ([RejectedMessage("service")], [])
    assert asking.on_word(StatusEvent(status.correlation_id, "service:driver", "status()" + RESULT, "{")) == (
        [RejectedMessage("service")],
        [],
    )


def test_questions_that_nobody_answers_do_not_pile_up() -> None:
    asking = ServicePoller(S)
    for second in range(3000):
        asked(asking, second * S)
    assert len(asking._open) <= 4096
