"""The service poller: its questions to services, and the events that their answers become."""

from __future__ import annotations

import json
from typing import Any

from tensorpool.monitor.reports import (
    BridgeReport,
    DriverLeases,
    DriverReport,
    RecorderLedgerReport,
    RecorderReport,
    RejectedMessage,
    ServiceAlive,
    StatusEvent,
)
from tensorpool.monitor.services import ServicePoller
from tensorpool.monitor.snapshot import DriverView, RecordedView
from tensorpool.service import Event
from tensorpool.service.events import ALL_SERVICES, RESULT

S = 1_000_000_000


DRIVER: dict[str, Any] = {
    "namespace": "lab", "instance": "a", "pid": 4, "user": "ada", "streams": 1, "leases": 2, "bytes": 3,
    "quota": None,
}  # fmt: skip
RECORDER: dict[str, Any] = {
    "state": "recording", "problem": None, "root": "/r", "pid": 3, "rows": 5, "gaps": {}, "rows_per_s": 1.0,
    "bytes_per_s": 2, "backlog_bytes": 0, "disk_free_bytes": 9, "streams": [5],
}  # fmt: skip
RECORDED: dict[str, Any] = {
    "stream_id": 5, "epoch": "1", "first_seq": "0", "last_seq": "5", "span": 6, "rows": 6, "gaps": {},
}  # fmt: skip


def lease(lease_id: int) -> dict[str, Any]:
    return {
        "lease_id": str(lease_id), "stream_id": 5, "client_id": 7, "role": "consumer", "state": "live",
        "age_s": 1.5, "expires_in_s": None,
    }  # fmt: skip


def mapping(source_id: int) -> dict[str, Any]:
    return {
        "direction": "send", "source_stream_id": source_id, "dest_stream_id": 1, "connected": True,
        "epoch": "1", "sent": 9, "published": 9, "bytes": 0, "dropped": {},
    }  # fmt: skip


def due(poller: ServicePoller, now_ns: int = 0) -> dict[tuple[str, str], Event]:
    return {(query.tag, query.key): query for query in poller.due(now_ns)}


def answer(query: Event, value: Any, tag: str | None = None) -> StatusEvent:
    return StatusEvent(query.correlation_id, tag or query.tag, query.key + RESULT, json.dumps(value))


def test_poller_asks_all_services_once_a_period() -> None:
    poller = ServicePoller(S)
    first = due(poller, 5 * S)
    assert set(first) == {
        (ALL_SERVICES, "ping()"),
        ("service:driver", "status()"),
        ("service:driver", "leases()"),
        ("service:recorder", "status()"),
        ("service:recorder", "ledger()"),
        ("service:bridge", "status()"),
    }
    assert len({query.correlation_id for query in first.values()}) == len(first)
    assert due(poller, 6 * S - 1) == {}
    second = due(poller, 6 * S)
    assert set(second) == set(first)
    assert {query.correlation_id for query in second.values()}.isdisjoint(
        query.correlation_id for query in first.values()
    )


def test_answers_become_events_of_the_service_that_answered() -> None:
    poller = ServicePoller(S)
    queries = due(poller)

    def events(query: tuple[str, str], value: Any, tag: str) -> list[object]:
        answers, more = poller.on_status_event(answer(queries[query], value, tag))
        assert more == []
        return answers

    ping = {"name": "camera", "instance": "left", "pid": 9}
    assert events((ALL_SERVICES, "ping()"), ping, "service:camera:left") == [
        ServiceAlive("service:camera:left", "camera", "left", 9)
    ]
    assert events(("service:driver", "status()"), DRIVER, "service:driver") == [
        DriverReport(DriverView("service:driver", "lab", "a", 4, "ada", 1, 2, 3, None, 0))
    ]
    [status] = events(("service:recorder", "status()"), RECORDER, "service:recorder:r")
    assert isinstance(status, RecorderReport)
    assert (status.recorder.instance, status.recorder.rows) == ("r", 5)
    assert events(("service:recorder", "ledger()"), [RECORDED], "service:recorder:r") == [
        RecorderLedgerReport("service:recorder:r", (RecordedView(5, 1, 0, 5, 6, 6, {}),))
    ]
    assert events(("service:driver", "leases()"), [], "service:driver") == [
        DriverLeases("service:driver", ())
    ]


def test_long_answers_are_requested_part_by_part() -> None:
    poller = ServicePoller(S)
    queries = due(poller)
    events, more = poller.on_status_event(answer(queries["service:driver", "leases()"], [lease(7)]))
    assert events == []
    assert [(query.tag, query.key, query.value) for query in more] == [
        ("service:driver", "leases()", '{"first": "8"}')
    ]
    events, more = poller.on_status_event(answer(more[0], [lease(9)]))
    assert events == []
    assert [query.value for query in more] == ['{"first": "10"}']
    [leases], more = poller.on_status_event(answer(more[0], []))
    assert isinstance(leases, DriverLeases)
    assert ([found.lease_id for found in leases.leases], more) == ([7, 9], [])
    part = {"pid": 3, "total": 2, "mappings": [mapping(1)]}
    query = queries["service:bridge", "status()"]
    events, more = poller.on_status_event(answer(query, part, "service:bridge:b"))
    assert events == []
    assert [(query.tag, query.value) for query in more] == [("service:bridge:b", '{"first": 1}')]
    last = {"pid": 3, "total": 2, "mappings": [mapping(2)]}
    [bridge], more = poller.on_status_event(answer(more[0], last))
    assert isinstance(bridge, BridgeReport)
    assert (bridge.tag, bridge.pid, more) == ("service:bridge:b", 3, [])
    assert [found.source_stream_id for found in bridge.mappings] == [1, 2]


def test_answers_of_two_services_to_one_question_do_not_mix() -> None:
    poller = ServicePoller(S)
    query = due(poller)["service:driver", "leases()"]
    lease_ids = {"service:driver:a": 1, "service:driver:b": 2}
    next_parts = {
        tag: poller.on_status_event(answer(query, [lease(lease_id)], tag))[1][0]
        for tag, lease_id in lease_ids.items()
    }
    for tag, lease_id in lease_ids.items():
        [leases], _ = poller.on_status_event(answer(next_parts[tag], []))
        assert isinstance(leases, DriverLeases)
        assert (leases.tag, [found.lease_id for found in leases.leases]) == (tag, [lease_id])


def test_unrequested_answers_are_ignored_and_invalid_ones_rejected() -> None:
    poller = ServicePoller(S)
    queries = due(poller)
    status = queries["service:driver", "status()"]
    unrequested = StatusEvent(12345, "service:driver", "status()" + RESULT, "{}")
    assert poller.on_status_event(unrequested) == ([], [])
    # An echo of the question, or an error, is no result.
    echo = StatusEvent(status.correlation_id, "service:driver", "status()", "{}")
    assert poller.on_status_event(echo) == ([], [])
    rejected: tuple[list[object], list[Event]] = ([RejectedMessage("service")], [])
    for value in (None, 5, "text", {}, DRIVER | {"pid": "x"}):
        assert poller.on_status_event(answer(status, value)) == rejected
    for key in ((ALL_SERVICES, "ping()"), ("service:driver", "leases()"), ("service:bridge", "status()")):
        assert poller.on_status_event(answer(queries[key], {"odd": 1})) == rejected
    invalid_rows: list[Any] = [{}, [{}], [RECORDED | {"stream_id": -1}]]
    for rows in invalid_rows:
        assert poller.on_status_event(answer(queries["service:recorder", "ledger()"], rows)) == rejected
    invalid_mapping = {"pid": 3, "total": 1, "mappings": [{"direction": "send"}]}
    assert poller.on_status_event(answer(queries["service:bridge", "status()"], invalid_mapping)) == rejected
    truncated = StatusEvent(status.correlation_id, "service:driver", "status()" + RESULT, "{")
    assert poller.on_status_event(truncated) == rejected


def test_unanswered_questions_do_not_fill_the_memory() -> None:
    poller = ServicePoller(S)
    for second in range(3000):
        due(poller, second * S)
    assert poller.unanswered <= 4096
