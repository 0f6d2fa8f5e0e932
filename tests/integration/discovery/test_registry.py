"""A registry on a media driver; the test publishes the announces of its drivers."""

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

ENVIRONMENT = {"TENSORPOOL_DISCOVERY__CHANNEL": "aeron:ipc"}
LONG_PERIOD_NS = 60_000_000_000
"""An announce period that is longer than a test."""


@pytest.fixture
def context(open_context: Callable[..., tp.Context], monkeypatch: pytest.MonkeyPatch) -> tp.Context:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    return open_context("standalone")


@pytest.fixture
def publish(publication: Callable[..., Any], wait_until: Callable[..., Any]) -> Callable[..., None]:
    publications: dict[int, Any] = {}

    def offer(context: tp.Context, stream_id: int, *messages: Any) -> None:
        if stream_id not in publications:
            publications[stream_id] = publication(context, stream_id)
        for message in messages:
            wait_until(lambda: publications[stream_id].offer(message.encode()) == "sent")  # noqa: B023  called at once

    return offer


def test_registry_finds_streams_of_several_drivers(
    context: tp.Context,
    registry_on: Callable[..., RegistryAgent],
    publish: Callable[..., None],
    wait_until: Callable[..., Any],
) -> None:
    registry_on(
        context,
        DriverSource(instance_id="lab", streams=(IdRange(1, 99),), announce_period_ns=LONG_PERIOD_NS),
        DriverSource(
            instance_id="roof",
            streams=(IdRange(100, 199),),
            control_stream_id=2000,
            announce_period_ns=LONG_PERIOD_NS,
        ),
        DriverSource(
            instance_id="cellar",
            announce_stream_id=1011,
            metadata_stream_id=1311,
            control_channel="aeron:udp?endpoint=127.0.0.1:9",
            announce_period_ns=LONG_PERIOD_NS,
        ),
    )
    publish(context, 1001, announce(5), announce(105), announce(500))
    publish(context, 1011, announce(5, epoch=9))
    publish(context, 1300, source(105, name="roof camera"), meta(105, ("sky",), 3))
    streams = wait_until(lambda: len(found := context.discover()) == 3 and found)
    assert [(stream.driver_instance_id, stream.stream_id, stream.epoch) for stream in streams] == [
        ("cellar", 5, 9),
        ("lab", 5, 5),
        ("roof", 105, 5),
    ]
    # Clients of another media driver cannot attach over its control channel (discovery §9).
    assert [stream.supports_local_attach for stream in streams] == [False, True, True]
    (roof,) = wait_until(lambda: context.discover(name="roof camera", tags=["sky"], data_source_id=3))
    assert (roof.control_channel, roof.control_stream_id) == ("aeron:ipc", 2000)
    with context.service("registry") as service:
        status = service.call("status")
    assert [(driver["instance_id"], driver["streams"]) for driver in status["drivers"]] == [
        ("lab", 1), ("roof", 1), ("cellar", 1),
    ]  # fmt: skip
    # Stream 500 is of no configured driver.
    assert status["counters"]["foreign"] >= 1


@pytest.mark.requirement("discovery-8-1")
def test_registry_does_not_forward_attaches(
    context: tp.Context,
    registry_on: Callable[..., RegistryAgent],
    publish: Callable[..., None],
    subscription: Callable[..., Any],
    wait_until: Callable[..., Any],
) -> None:
    """It publishes nothing on the driver's control stream, not even when it receives an attach request."""
    control = subscription(context, 1000)
    agent = registry_on(context, DriverSource(instance_id="lab", announce_period_ns=LONG_PERIOD_NS))
    publish(context, 1001, announce(5))
    wait_until(context.discover)
    attach = ShmAttachRequest(
        correlation_id=1, stream_id=5, client_id=2, role=Role.CONSUMER, expected_layout_version=1
    )
    publish(context, 7000, attach)
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


def test_response_of_many_fragments_is_complete(
    context: tp.Context,
    registry_on: Callable[..., RegistryAgent],
    publish: Callable[..., None],
    wait_until: Callable[..., Any],
) -> None:
    agent = registry_on(context, DriverSource(instance_id="lab", announce_period_ns=LONG_PERIOD_NS))
    publish(context, 1001, *many(1000, tags=1))
    wait_until(lambda: len(context.discover(tags=["00" + "x" * 200])) == 1000)
    streams = context.discover()
    assert [stream.name for stream in streams] == [f"camera-{number}" for number in range(1, 1001)]
    assert agent.counters.unsent.total == 0


def test_too_large_response_is_an_error_with_a_hint(
    context: tp.Context,
    registry_on: Callable[..., RegistryAgent],
    publish: Callable[..., None],
    wait_until: Callable[..., Any],
) -> None:
    agent = registry_on(context, DriverSource(instance_id="lab", announce_period_ns=LONG_PERIOD_NS))
    publish(context, 1001, *many(800, tags=4))
    wait_until(lambda: len(agent.index) == 800)
    wait_until(lambda: len(context.discover(stream_id=800)[0].tags) >= 4)
    with pytest.raises(tp.DiscoveryError, match="narrow the filter"):
        context.discover()
    assert len(context.discover(name="camera-7")) == 1


def test_reload_adds_and_removes_drivers(
    context: tp.Context,
    registry_on: Callable[..., RegistryAgent],
    publish: Callable[..., None],
    wait_until: Callable[..., Any],
) -> None:
    lab = DriverSource(instance_id="lab", announce_period_ns=LONG_PERIOD_NS)
    roof = DriverSource(
        instance_id="roof",
        announce_stream_id=1011,
        metadata_stream_id=1311,
        announce_period_ns=LONG_PERIOD_NS,
    )
    agent = registry_on(context, lab)
    publish(context, 1001, announce(5))
    wait_until(context.discover)
    agent.on_reload({RegistrySettings: RegistrySettings(drivers=(lab, roof))})  # type: ignore[arg-type]
    wait_until(agent.is_ready)
    publish(context, 1011, announce(6))
    wait_until(lambda: [stream.stream_id for stream in context.discover()] == [5, 6])
    agent.on_reload({RegistrySettings: RegistrySettings(drivers=(roof,))})  # type: ignore[arg-type]
    assert [stream.stream_id for stream in context.discover()] == [6]


def test_registry_hides_streams_by_visibility_rules(
    open_context: Callable[..., tp.Context],
    monkeypatch: pytest.MonkeyPatch,
    registry_on: Callable[..., RegistryAgent],
    publish: Callable[..., None],
    wait_until: Callable[..., Any],
) -> None:
    from tensorpool.discovery import VisibilityRule

    monkeypatch.setenv("TENSORPOOL_DISCOVERY__CHANNEL", "aeron:ipc")
    monkeypatch.setenv("TENSORPOOL_DISCOVERY__CLIENT_ID", "7")
    visible = open_context("standalone")
    monkeypatch.setenv("TENSORPOOL_DISCOVERY__CLIENT_ID", "8")
    hidden = open_context("standalone")
    rules = (VisibilityRule(clients=(IdRange(7, 7),)),)
    registry_on(
        visible,
        DriverSource(instance_id="lab", announce_period_ns=LONG_PERIOD_NS),
        discovery=DiscoverySettings(provider=ProviderSettings(rules=rules)),
    )
    publish(visible, 1001, announce(5))
    wait_until(visible.discover)
    assert hidden.discover() == []


def test_rate_limit_of_one_client_does_not_affect_another(
    context: tp.Context,
    registry_on: Callable[..., RegistryAgent],
    publication: Callable[..., Any],
    wait_until: Callable[..., Any],
) -> None:
    agent = registry_on(
        context,
        discovery=DiscoverySettings(provider=ProviderSettings(rate_hz=1, burst=3)),
    )
    requests = publication(context, 7000)
    for _ in range(50):
        wait_until(lambda: requests.offer(request(client_id=9).encode()) == "sent")
    wait_until(lambda: agent.counters.refused["rate"].value >= 46)
    assert context.discover() == []
