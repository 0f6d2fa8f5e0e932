"""A registry on a real media driver; the drivers it hears are played by the test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tensorpool as tp
from tensorpool.discovery import DiscoverySettings, ProviderSettings
from tensorpool.registry import DriverSource, RegistryAgent, RegistrySettings
from tensorpool.runtime.config import IdRange
from tensorpool.sbe import Role, ShmAttachRequest
from tests.unit.discovery.provider_harness import announce, meta, request, source

ASKING = {"TENSORPOOL_DISCOVERY__CHANNEL": "aeron:ipc"}
PATIENT = 60_000_000_000
"""An announce period that outlives a test."""


@pytest.fixture
def context(open_context: Callable[..., tp.Context], monkeypatch: pytest.MonkeyPatch) -> tp.Context:
    for name, value in ASKING.items():
        monkeypatch.setenv(name, value)
    return open_context("standalone")


@pytest.fixture
def say(voice: Callable[..., Any], wait_until: Callable[..., Any]) -> Callable[..., None]:
    voices: dict[int, Any] = {}

    def speak(context: tp.Context, stream_id: int, *messages: Any) -> None:
        if stream_id not in voices:
            voices[stream_id] = voice(context, stream_id)
        for message in messages:
            wait_until(lambda: voices[stream_id].offer(message.encode()) == "sent")  # noqa: B023  over at once

    return speak


def test_streams_of_several_drivers_are_found_in_one_place(
    context: tp.Context,
    registry_on: Callable[..., RegistryAgent],
    say: Callable[..., None],
    wait_until: Callable[..., Any],
) -> None:
    registry_on(
        context,
        DriverSource(instance_id="lab", streams=(IdRange(1, 99),), announce_period_ns=PATIENT),
        DriverSource(
            instance_id="roof",
            streams=(IdRange(100, 199),),
            control_stream_id=2000,
            announce_period_ns=PATIENT,
        ),
        DriverSource(
            instance_id="cellar",
            announce_stream_id=1011,
            metadata_stream_id=1311,
            control_channel="aeron:udp?endpoint=127.0.0.1:9",
            announce_period_ns=PATIENT,
        ),
    )
    say(context, 1001, announce(5), announce(105), announce(500))
    say(context, 1011, announce(5, epoch=9))
    say(context, 1300, source(105, name="roof camera"), meta(105, ("sky",), 3))
    found = wait_until(lambda: len(all_of := context.discover()) == 3 and all_of)
    assert [(one.driver_instance_id, one.stream_id, one.epoch) for one in found] == [
        ("cellar", 5, 9),
        ("lab", 5, 5),
        ("roof", 105, 5),
    ]
    (roof,) = wait_until(lambda: context.discover(name="roof camera", tags=["sky"], data_source_id=3))
    assert (roof.control_channel, roof.control_stream_id) == ("aeron:ipc", 2000)
    with context.service("registry") as service:
        status = service.call("status")
    assert [(one["instance_id"], one["streams"]) for one in status["drivers"]] == [
        ("lab", 1), ("roof", 1), ("cellar", 1),
    ]  # fmt: skip
    # Stream 500 is nobody's.
    assert status["counters"]["foreign"] >= 1


@pytest.mark.requirement("discovery-8-1")
def test_a_registry_hands_no_attach_on(
    context: tp.Context,
    registry_on: Callable[..., RegistryAgent],
    say: Callable[..., None],
    ear: Callable[..., Any],
    wait_until: Callable[..., Any],
) -> None:
    """It names the driver's endpoint and says nothing there, not even when an attach comes to itself."""
    control = ear(context, 1000)
    agent = registry_on(context, DriverSource(instance_id="lab", announce_period_ns=PATIENT))
    say(context, 1001, announce(5))
    wait_until(context.discover)
    attach = ShmAttachRequest(
        correlation_id=1, stream_id=5, client_id=2, role=Role.CONSUMER, expected_layout_version=1
    )
    say(context, 7000, attach)
    wait_until(lambda: agent.counters.foreign.value == 1)
    assert context.discover()
    assert control.poll() == []


def many(count: int, tags: int) -> list[Any]:
    long = tuple(f"{number:02}{'x' * 200}" for number in range(tags))
    messages: list[Any] = []
    for stream_id in range(1, count + 1):
        messages += [
            announce(stream_id),
            source(stream_id, name=f"camera-{stream_id}"),
            meta(stream_id, long),
        ]
    return messages


def test_an_answer_of_many_fragments_arrives_whole(
    context: tp.Context,
    registry_on: Callable[..., RegistryAgent],
    say: Callable[..., None],
    wait_until: Callable[..., Any],
) -> None:
    agent = registry_on(context, DriverSource(instance_id="lab", announce_period_ns=PATIENT))
    say(context, 1001, *many(1000, tags=1))
    wait_until(lambda: len(context.discover(tags=["00" + "x" * 200])) == 1000)
    found = context.discover()
    assert [one.name for one in found] == [f"camera-{number}" for number in range(1, 1001)]
    assert agent.counters.unsent.total == 0


def test_an_answer_that_the_channel_has_no_room_for_says_to_narrow_the_filter(
    context: tp.Context,
    registry_on: Callable[..., RegistryAgent],
    say: Callable[..., None],
    wait_until: Callable[..., Any],
) -> None:
    agent = registry_on(context, DriverSource(instance_id="lab", announce_period_ns=PATIENT))
    say(context, 1001, *many(800, tags=4))
    wait_until(lambda: len(agent.index) == 800)
    wait_until(lambda: context.discover(stream_id=800)[0].tags)
    with pytest.raises(tp.DiscoveryError, match="narrow the filter"):
        context.discover()
    assert len(context.discover(name="camera-7")) == 1


def test_drivers_come_and_go_with_a_reload(
    context: tp.Context,
    registry_on: Callable[..., RegistryAgent],
    say: Callable[..., None],
    wait_until: Callable[..., Any],
) -> None:
    lab = DriverSource(instance_id="lab", announce_period_ns=PATIENT)
    roof = DriverSource(
        instance_id="roof", announce_stream_id=1011, metadata_stream_id=1311, announce_period_ns=PATIENT
    )
    agent = registry_on(context, lab)
    say(context, 1001, announce(5))
    wait_until(context.discover)
    agent.on_reload({RegistrySettings: RegistrySettings(drivers=(lab, roof))})  # type: ignore[arg-type]
    wait_until(agent.is_ready)
    say(context, 1011, announce(6))
    wait_until(lambda: [one.stream_id for one in context.discover()] == [5, 6])
    agent.on_reload({RegistrySettings: RegistrySettings(drivers=(roof,))})  # type: ignore[arg-type]
    assert [one.stream_id for one in context.discover()] == [6]


def test_a_registry_with_rules_says_not_found_and_the_client_finds_nothing(
    open_context: Callable[..., tp.Context],
    monkeypatch: pytest.MonkeyPatch,
    registry_on: Callable[..., RegistryAgent],
    say: Callable[..., None],
    wait_until: Callable[..., Any],
) -> None:
    from tensorpool.discovery import VisibilityRule

    monkeypatch.setenv("TENSORPOOL_DISCOVERY__CHANNEL", "aeron:ipc")
    monkeypatch.setenv("TENSORPOOL_DISCOVERY__CLIENT_ID", "7")
    seven = open_context("standalone")
    monkeypatch.setenv("TENSORPOOL_DISCOVERY__CLIENT_ID", "8")
    eight = open_context("standalone")
    rules = (VisibilityRule(clients=(IdRange(7, 7),)),)
    registry_on(
        seven,
        DriverSource(instance_id="lab", announce_period_ns=PATIENT),
        discovery=DiscoverySettings(provider=ProviderSettings(rules=rules)),
    )
    say(seven, 1001, announce(5))
    wait_until(seven.discover)
    assert eight.discover() == []


def test_a_client_that_asks_all_the_time_is_held_back_and_another_is_not(
    context: tp.Context,
    registry_on: Callable[..., RegistryAgent],
    voice: Callable[..., Any],
    wait_until: Callable[..., Any],
) -> None:
    agent = registry_on(
        context,
        discovery=DiscoverySettings(provider=ProviderSettings(rate_hz=1, burst=3)),
    )
    speak = voice(context, 7000)
    for _ in range(50):
        wait_until(lambda: speak.offer(request(client_id=9).encode()) == "sent")
    wait_until(lambda: agent.counters.refused["rate"].value >= 46)
    assert context.discover() == []
