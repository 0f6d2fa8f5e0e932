"""Replies of a service, without streams: `handle` is a function of the event."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tensorpool.errors import ConfigError, RequestRejected
from tensorpool.service import ALL_SERVICES, Event, Property, Service, command, service_tag

TAG = "service:heater"


class Heater(Service, name="heater"):
    """Holds a temperature."""

    temperature = Property(20.0, minimum=0.0, maximum=250.0, doc="Degrees Celsius to hold.")
    programme = Property("off", choices=("off", "bread", "pizza"))
    runs = Property(0, writable=False)

    @command
    def run(self, minutes: int, *, fan: bool = False) -> str:
        """Bakes."""
        if minutes < 0:
            raise RequestRejected("time goes forwards")
        self.runs += 1
        return f"{minutes} min{' with fan' if fan else ''}"

    @command
    def fail(self) -> None:
        raise RuntimeError("fire")

    @command(needs_token=True)
    def erase(self) -> str:
        return "boom"


@pytest.fixture
def heater() -> Heater:
    return Heater(token="s3cret")


def ask(
    heater: Heater, key: str, value: Any = None, *, tag: str = TAG, correlation_id: int = 7
) -> list[tuple[str, Any]]:
    replies = list(heater.handle(Event(tag, key, value, correlation_id, trace_id=9)))
    assert all(a.tag == TAG for a in replies)
    assert all((a.correlation_id, a.trace_id) == (correlation_id, 9) for a in replies if a.correlation_id)
    return [(a.key, a.value) for a in replies]


def test_empty_value_reads_a_property(heater: Heater) -> None:
    assert ask(heater, "temperature") == [("temperature.read", 20.0)]


@pytest.mark.requirement("service-5.2-4")
@pytest.mark.parametrize(("correlation_id", "trace_id"), [(7, None), (0, 9), (7, 9), (-3, 2**64 - 1)])
@pytest.mark.parametrize(
    ("key", "value"),
    [("temperature", None), ("temperature", 180.0), ("temperature", "hot"), ("run()", '{"minutes": 1}'),
     ("fail()", None), ("grill()", None)],
)  # fmt: skip
def test_replies_keep_the_identity_of_the_request(
    heater: Heater, key: str, value: Any, correlation_id: int, trace_id: int | None
) -> None:
    """Echo, result, failure and rejection, also where only one of the two ids is given."""
    received = Event.decode(Event(TAG, key, value, correlation_id, trace_id, timestamp_ns=5).encode())
    replies = [reply for reply in heater.handle(received) if reply.key.startswith(key)]
    sent = [Event.decode(reply.encode()) for reply in replies]
    assert {(reply.correlation_id, reply.trace_id) for reply in sent} == {(correlation_id, trace_id)}
    # A repeated request gets the same replies again.
    repeated = [reply for reply in heater.handle(received) if reply.key.startswith(key)]
    if correlation_id:
        assert repeated == replies


@pytest.mark.requirement("service-6-1")
def test_accepted_value_is_echoed_and_set(heater: Heater) -> None:
    assert ask(heater, "temperature", 180) == [("temperature", 180.0)]
    assert heater.temperature == 180.0
    assert type(heater.temperature) is float


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("temperature", 251.0, "at most 250.0"),
        ("temperature", -1, "at least 0.0"),
        ("temperature", float("nan"), "at least 0.0"),
        ("temperature", "hot", "takes float, not str"),
        ("temperature", True, "takes float, not bool"),
        ("programme", "soup", "one of 'off', 'bread', 'pizza'"),
        ("runs", 5, "read-only"),
        ("colour", 5, "no property 'colour'; the properties are temperature, programme, runs"),
        ("grill()", "{}", "no command 'grill()'"),
        ("run()", "{}", "missing a required argument: 'minutes'"),
        ("run()", '{"minutes": 1, "x": 2}', "unexpected keyword argument 'x'"),
        ("run()", "[1]", "must be a JSON object"),
        ("run()", "{", "not JSON"),
        ("run()", 5, "as JSON text, not int"),
        ("run()", np.arange(3.0), "as JSON text, not ndarray"),
        ("run()", np.array([], np.uint8), "as JSON text, not ndarray"),
    ],
)
def test_rejection_has_its_own_key_and_no_echo(heater: Heater, key: str, value: Any, reason: str) -> None:
    before = (heater.temperature, heater.programme, heater.runs)
    [(reply_key, why)] = ask(heater, key, value)
    assert reply_key == key + ".error"
    assert reason in why
    assert (heater.temperature, heater.programme, heater.runs) == before


@pytest.mark.requirement("service-6-1")
def test_command_is_echoed_before_its_result(heater: Heater) -> None:
    replies = ask(heater, "run()", '{"minutes": 5, "fan": true}')
    assert replies == [
        ("run()", '{"minutes": 5, "fan": true}'),
        ("run().result", '"5 min with fan"'),
        ("runs", 1),
    ]


def test_failed_command_is_reported_as_failed(heater: Heater) -> None:
    assert ask(heater, "fail()")[1] == ("fail().failed", "RuntimeError: fire")
    assert ask(heater, "run()", '{"minutes": -1}', correlation_id=8)[1] == (
        "run().failed",
        "time goes forwards",
    )


def test_repeated_request_gets_the_same_replies_and_runs_once(heater: Heater) -> None:
    first = ask(heater, "run()", '{"minutes": 5}')
    again = ask(heater, "run()", '{"minutes": 5}')
    assert again == first[:2]
    assert heater.runs == 1
    ask(heater, "run()", '{"minutes": 5}', correlation_id=8)
    assert heater.runs == 2


def test_reply_cache_is_bounded_in_number(heater: Heater) -> None:
    """A request is recognised as repeated while fewer than 1024 others follow it."""
    run = ("run()", '{"minutes": 5}')
    ask(heater, *run, correlation_id=5000)
    for number in range(1, 1024):
        ask(heater, "temperature", correlation_id=number)
    ask(heater, *run, correlation_id=5000)
    assert heater.runs == 1
    ask(heater, "temperature", correlation_id=1024)
    ask(heater, *run, correlation_id=5000)
    assert heater.runs == 2


def test_token_is_required_and_never_repeated_in_replies(heater: Heater) -> None:
    for value in ("{}", '{"token": "wrong"}', '{"token": 5}', '{"token": "ünwrong"}'):
        [(key, why)] = ask(heater, "erase()", value, correlation_id=0)
        assert key == "erase().error"
        assert "needs the service's token: TENSORPOOL_TOKEN" in why
        assert "s3cret" not in why
    replies = ask(heater, "erase()", '{"token": "s3cret"}')
    assert replies == [("erase()", "{}"), ("erase().result", '"boom"')]
    [(key, why)] = ask(Heater(), "erase()", '{"token": ""}')
    assert "has no token; set token in [service]" in why


def test_all_services_tag_accepts_only_harmless_commands(heater: Heater) -> None:
    replies = ask(heater, "ping()", tag=ALL_SERVICES)
    assert json.loads(replies[1][1])["name"] == "heater"
    assert ask(heater, "run()", '{"minutes": 1}', tag=ALL_SERVICES, correlation_id=8)[0][0] == "run().error"
    assert ask(heater, "temperature", 5.0, tag=ALL_SERVICES, correlation_id=9)[0][0] == "temperature.error"


def test_change_by_the_service_is_published_once(heater: Heater) -> None:
    heater.temperature = 30.0
    heater.temperature = 30.0
    assert [(e.key, e.value, e.correlation_id) for e in heater.take_events()] == [("temperature", 30.0, 0)]
    assert list(heater.take_events()) == []
    with pytest.raises(RequestRejected):
        heater.temperature = 1000.0


def test_describe_returns_types_limits_and_docs(heater: Heater) -> None:
    described = json.loads(ask(heater, "describe()")[1][1])
    assert described["properties"]["temperature"] == {
        "type": "float",
        "doc": "Degrees Celsius to hold.",
        "writable": True,
        "minimum": 0.0,
        "maximum": 250.0,
    }
    assert described["commands"]["run"]["parameters"] == ["minutes: int", "fan: bool = False"]
    assert described["commands"]["erase"]["needs_token"]


@pytest.mark.requirement("service-7-1", "service-4-1")
def test_service_tags_have_name_and_instance() -> None:
    assert service_tag("heater") == TAG
    assert service_tag("heater", "2") == "service:heater:2"
    assert Heater(instance="2").tags == ["service:heater", "service:heater:2", ALL_SERVICES]
    assert Heater().tags == ["service:heater", ALL_SERVICES]
    for bad in ("", "a:b", "ö", "a\n"):
        with pytest.raises(ConfigError, match="service name"):
            service_tag(bad)


def test_service_without_a_name_is_refused() -> None:
    class Nameless(Service):
        pass

    with pytest.raises(TypeError, match="name="):
        Nameless()
