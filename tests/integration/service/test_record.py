"""The record of accepted commands: complete for a client that subscribes in time, and recordable."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tensorpool as tp
from tensorpool import _native, recording
from tensorpool.cli.recording import EVENT_KINDS
from tensorpool.service import Event, EventKind, ServiceAgent
from tests.integration.service.roles import Heater


@pytest.fixture
def ctx(aeron_dir: Path) -> Iterator[tp.Context]:
    with tp.open(aeron_dir=aeron_dir) as context:
        yield context


@pytest.mark.requirement("service-6-1")
def test_record_distinguishes_reads_and_changes(ctx: tp.Context, tmp_path: Path) -> None:
    root = tmp_path / "commands"
    with ctx.serve(Heater()), ctx.service("heater", timeout=60) as client:
        with ctx.record(root, streams=[], services=True, serve=False):
            client.get("temperature")
            client.set("temperature", 180.0)
            with pytest.raises(tp.RequestRejected):
                client.set("temperature", 1e6)
            client.call("run")
            client.ping()
        client.set("temperature", 20.0)
    rows = recording.open(root).table("events").to_pylist()
    own = [row for row in rows if row["tag"] == "service:heater"]
    assert [(row["kind"], row["key"]) for row in own] == [
        ("read", "temperature.read"),
        ("change", "temperature"),
        ("rejected", "temperature.error"),
        ("change", "run()"),
        ("result", "run().result"),
        # The service changed its own property.
        ("change", "runs"),
        ("read", "ping().read"),
        ("result", "ping().result"),
    ]
    assert [Event.decode(row["message"]).value for row in own[:2]] == [20.0, 180.0]
    assert all(row["correlation_id"] for row in own if row["key"] != "runs")
    assert [row["receive_time_ns"] for row in rows] == sorted(row["receive_time_ns"] for row in rows)


@pytest.mark.requirement("service-6-1")
def test_record_of_many_commands_has_each_once(ctx: tp.Context, tmp_path: Path) -> None:
    root = tmp_path / "commands"
    with (
        ctx.serve(Heater()),
        ctx.service("heater", timeout=60) as client,
        ctx.record(root, streams=[], services=True, serve=False),
    ):
        for number in range(2000):
            client.set("temperature", float(number % 250))
    rows = [row for row in recording.open(root).table("events").to_pylist() if row["key"] == "temperature"]
    assert [Event.decode(row["message"]).value for row in rows] == [float(n % 250) for n in range(2000)]
    assert len({row["correlation_id"] for row in rows}) == 2000


@pytest.mark.requirement("service-6-1")
def test_command_waits_while_the_record_is_full(
    ctx: tp.Context, aeron_dir: Path, wait_until: Callable[..., Any]
) -> None:
    """A subscriber that does not poll for a while holds commands back, and then misses none of them."""
    streams = ctx.service_streams
    conductor = ctx.connection.conductor
    slow = _native.Subscription(conductor, streams.status_channel, streams.status)
    agent = ServiceAgent(Heater(), conductor, streams)
    commands = _native.Publication(conductor, streams.control_channel, streams.control)
    try:
        wait_until(lambda: agent.is_ready() and slow.is_ready and commands.is_connected)
        sent = 0
        # A large value fills the term window soon.
        text = "x" * 30_000

        def offer_and_work() -> bool:
            nonlocal sent
            command = Event("service:heater", text, None, sent + 1)
            if commands.offer(command.encode()) == "sent":
                sent += 1
            agent.do_work()
            return agent.queued > 0

        wait_until(offer_and_work)
        handled = agent.counters.requests.value
        for _ in range(300):
            command = Event("service:heater", "temperature", 1.0, sent + 1)
            wait_until(lambda command=command: commands.offer(command.encode()) == "sent")
            sent += 1
            agent.do_work()
        assert agent.counters.requests.value == handled
        assert agent.counters.unpublished.value == 0
        received: list[int] = []

        def drained() -> bool:
            received.extend(Event.decode(message).correlation_id for message in slow.poll())
            agent.do_work()
            return len(received) == sent

        wait_until(drained)
        # Their order is kept for two seconds of a subscriber that does not poll; a busy machine takes longer.
        assert sorted(received) == list(range(1, sent + 1))
    finally:
        agent.on_close()
        commands.close()
        slow.close()


def test_lost_events_are_an_event_of_the_record(
    ctx: tp.Context, wait_until: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A subscriber that has stopped delays the service for some time; the record says what is missing."""
    monkeypatch.setattr("tensorpool.service.agent._MAX_STALL_NS", 0)
    monkeypatch.setattr("tensorpool.service.agent._MAX_QUEUED", 8)
    streams, conductor = ctx.service_streams, ctx.connection.conductor
    slow = _native.Subscription(conductor, streams.status_channel, streams.status)
    agent = ServiceAgent(Heater(), conductor, streams)
    try:
        wait_until(lambda: agent.is_ready() and slow.is_ready)

        def work() -> bool:
            agent.service.add_event("noise", "x" * 30_000)
            agent.do_work()
            return agent.counters.unpublished.value >= 20

        wait_until(work)
        received: list[Event] = []

        def drained() -> bool:
            received.extend(Event.decode(message) for message in slow.poll())
            agent.do_work()
            return agent.queued == 0 and len(received) == agent.counters.published.value + 1

        wait_until(drained)
        lost = [event.value for event in received if event.kind is EventKind.LOST]
        noise = [event for event in received if event.key == "noise"]
        assert lost == [agent.counters.unpublished.value]
        assert len(noise) == len(received) - 1
        # What is missing was between the events before and after this one.
        assert received[-1].key == "noise"
    finally:
        agent.on_close()
        slow.close()


def test_kind_of_an_event_follows_from_its_key() -> None:
    kinds = {
        "temperature": EventKind.CHANGE,
        "run()": EventKind.CHANGE,
        "temperature.read": EventKind.READ,
        "ping().result": EventKind.RESULT,
        "run().failed": EventKind.FAILED,
        "a.b.error": EventKind.REJECTED,
        "(lost)": EventKind.LOST,
    }
    assert {key: Event("service:x", key, 1).kind for key in kinds} == kinds
    assert set(EVENT_KINDS) == set(EventKind)
