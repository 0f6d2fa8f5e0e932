"""What a service answers, without any stream: `handle` is a function of the event."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tensorpool.errors import ConfigError, RequestRejected
from tensorpool.service import ALL_SERVICES, Event, Property, Service, command, service_tag

TAG = "service:oven"


class Oven(Service, name="oven"):
    """Holds a temperature."""

    temperature = Property(20.0, minimum=0.0, maximum=250.0, doc="Degrees Celsius to hold.")
    programme = Property("off", choices=("off", "bread", "pizza"))
    baked = Property(0, writable=False)

    @command
    def bake(self, minutes: int, *, fan: bool = False) -> str:
        """Bakes."""
        if minutes < 0:
            raise RequestRejected("time goes forwards")
        self.baked += 1
        return f"{minutes} min{' with fan' if fan else ''}"

    @command
    def burn(self) -> None:
        raise RuntimeError("fire")

    @command(needs_token=True)
    def explode(self) -> str:
        return "boom"


@pytest.fixture
def oven() -> Oven:
    return Oven(token="s3cret")


def ask(
    oven: Oven, key: str, value: Any = None, *, tag: str = TAG, correlation_id: int = 7
) -> list[tuple[str, Any]]:
    answers = list(oven.handle(Event(tag, key, value, correlation_id, trace_id=9)))
    assert all(a.tag == TAG for a in answers)
    assert all((a.correlation_id, a.trace_id) == (correlation_id, 9) for a in answers if a.correlation_id)
    return [(a.key, a.value) for a in answers]


def test_nothing_asks_for_a_property(oven: Oven) -> None:
    assert ask(oven, "temperature") == [("temperature", 20.0)]


@pytest.mark.requirement("service-6-1")
def test_an_accepted_value_is_echoed_and_kept(oven: Oven) -> None:
    assert ask(oven, "temperature", 180) == [("temperature", 180.0)]
    assert oven.temperature == 180.0
    assert type(oven.temperature) is float


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("temperature", 251.0, "at most 250.0"),
        ("temperature", -1, "at least 0.0"),
        ("temperature", float("nan"), "at least 0.0"),
        ("temperature", "hot", "takes float, not str"),
        ("temperature", True, "takes float, not bool"),
        ("programme", "soup", "one of 'off', 'bread', 'pizza'"),
        ("baked", 5, "read-only"),
        ("colour", 5, "no property 'colour'; there are temperature, programme, baked"),
        ("grill()", "{}", "no command 'grill()'"),
        ("bake()", "{}", "missing a required argument: 'minutes'"),
        ("bake()", '{"minutes": 1, "x": 2}', "unexpected keyword argument 'x'"),
        ("bake()", "[1]", "must be a JSON object"),
        ("bake()", "{", "not JSON"),
        ("bake()", 5, "as JSON text, not int"),
    ],
)
def test_a_refusal_is_answered_under_its_own_key_and_never_as_an_echo(
    oven: Oven, key: str, value: Any, reason: str
) -> None:
    before = (oven.temperature, oven.programme, oven.baked)
    [(answered, why)] = ask(oven, key, value)
    assert answered == key + ".error"
    assert reason in why
    assert (oven.temperature, oven.programme, oven.baked) == before


@pytest.mark.requirement("service-6-1")
def test_a_command_is_echoed_before_its_result(oven: Oven) -> None:
    answers = ask(oven, "bake()", '{"minutes": 5, "fan": true}')
    assert answers == [
        ("bake()", '{"minutes": 5, "fan": true}'),
        ("bake().result", '"5 min with fan"'),
        ("baked", 1),
    ]


def test_an_accepted_command_that_goes_wrong_says_so(oven: Oven) -> None:
    assert ask(oven, "burn()")[1] == ("burn().failed", "RuntimeError: fire")
    assert ask(oven, "bake()", '{"minutes": -1}', correlation_id=8)[1] == (
        "bake().failed",
        "time goes forwards",
    )


def test_a_request_that_comes_again_is_answered_again_and_not_done_again(oven: Oven) -> None:
    first = ask(oven, "bake()", '{"minutes": 5}')
    again = ask(oven, "bake()", '{"minutes": 5}')
    assert again == first[:2]
    assert oven.baked == 1
    ask(oven, "bake()", '{"minutes": 5}', correlation_id=8)
    assert oven.baked == 2


def test_the_memory_of_requests_is_bounded(oven: Oven) -> None:
    for number in range(1, 3000):
        ask(oven, "temperature", correlation_id=number)
    assert len(oven._answered) == 1024


def test_harm_needs_the_token_and_the_token_is_never_repeated(oven: Oven) -> None:
    for value in ("{}", '{"token": "wrong"}', '{"token": 5}', '{"token": "ünwrong"}'):
        [(key, why)] = ask(oven, "explode()", value, correlation_id=0)
        assert key == "explode().error"
        assert "needs the service's token: TENSORPOOL_TOKEN" in why
        assert "s3cret" not in why
    answers = ask(oven, "explode()", '{"token": "s3cret"}')
    assert answers == [("explode()", "{}"), ("explode().result", '"boom"')]
    [(key, why)] = ask(Oven(), "explode()", '{"token": ""}')
    assert "none configured; give it one (token in [service]" in why


def test_all_services_at_once_can_only_be_asked_who_they_are(oven: Oven) -> None:
    answers = ask(oven, "ping()", tag=ALL_SERVICES)
    assert json.loads(answers[1][1])["name"] == "oven"
    assert ask(oven, "bake()", '{"minutes": 1}', tag=ALL_SERVICES, correlation_id=8)[0][0] == "bake().error"
    assert ask(oven, "temperature", 5.0, tag=ALL_SERVICES, correlation_id=9)[0][0] == "temperature.error"


def test_what_the_service_changes_itself_is_told_once(oven: Oven) -> None:
    oven.temperature = 30.0
    oven.temperature = 30.0
    assert [(e.key, e.value, e.correlation_id) for e in oven.tell()] == [("temperature", 30.0, 0)]
    assert list(oven.tell()) == []
    with pytest.raises(RequestRejected):
        oven.temperature = 1000.0


def test_describe_tells_types_limits_and_docs(oven: Oven) -> None:
    described = json.loads(ask(oven, "describe()")[1][1])
    assert described["properties"]["temperature"] == {
        "type": "float",
        "doc": "Degrees Celsius to hold.",
        "writable": True,
        "minimum": 0.0,
        "maximum": 250.0,
    }
    assert described["commands"]["bake"]["parameters"] == ["minutes: int", "fan: bool = False"]
    assert described["commands"]["explode"]["needs_token"]


@pytest.mark.requirement("service-7-1", "service-4-1")
def test_tags_follow_one_rule() -> None:
    assert service_tag("oven") == TAG
    assert service_tag("oven", "2") == "service:oven:2"
    assert Oven(instance="2").tags == ["service:oven", "service:oven:2", ALL_SERVICES]
    assert Oven().tags == ["service:oven", ALL_SERVICES]
    for bad in ("", "a:b", "ö", "a\n"):
        with pytest.raises(ConfigError, match="service name"):
            service_tag(bad)


def test_a_service_without_a_name_says_how_to_give_one() -> None:
    class Nameless(Service):
        pass

    with pytest.raises(TypeError, match="name="):
        Nameless()
