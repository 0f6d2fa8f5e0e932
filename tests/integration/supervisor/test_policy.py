"""Rules and manual orders, and their effect on consumers in other processes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import tensorpool as tp
from tensorpool import _native
from tensorpool.cli import cli
from tensorpool.errors import CommandFailed, RequestRejected
from tensorpool.runtime.runner import Runner
from tensorpool.service import Event, Property, Service
from tensorpool.supervisor.agent import SupervisorAgent
from tensorpool.supervisor.config import Rule, SupervisorSettings
from tests.integration.hello.test_orders_and_qos import fallback_uri
from tests.remote_process import RemoteProcess

INCOMPLETE_URI = "bridge://7?payload=aeron%3Audp%3Fendpoint%3D127.0.0.1%3A9&payload_stream=1&stream=5"
MS = 1_000_000


def rule(**fields: Any) -> Rule:
    quick = {"for_ns": 300 * MS, "clear_for_ns": 1000 * MS, "cool_down_ns": 100 * MS}
    return Rule(**{**quick, **fields})


@contextmanager
def supervising(ctx: tp.Context, *rules: Rule) -> Iterator[SupervisorAgent]:
    agent = SupervisorAgent(ctx, settings=SupervisorSettings(rules=rules, evaluation_period_ns=100 * MS))
    runner = Runner(agent)
    runner.start()
    try:
        yield agent
    finally:
        runner.close()


@contextmanager
def decisions(
    ctx: tp.Context, wait_until: Callable[..., Any]
) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """A function that returns all decisions that were published on the status stream."""
    streams = ctx.service_streams
    mailbox = _native.Mailbox(
        ctx.connection.conductor, streams.status_channel, streams.status, ["service:supervisor"]
    )
    wait_until(lambda: mailbox.is_connected, timeout=60)
    received: list[dict[str, Any]] = []

    def published() -> list[dict[str, Any]]:
        events = (Event.decode(message) for message in mailbox.take(64))
        received.extend(json.loads(str(event.value)) for event in events if event.key == "decision")
        return received

    try:
        yield published
    finally:
        mailbox.close()


class LimitRound:
    """One round: a consumer loses frames, is limited, keeps up, and is released."""

    ROUNDS = 5

    def __init__(
        self, agent: SupervisorAgent, published: Callable[[], list[dict[str, Any]]], number: int
    ) -> None:
        self._agent, self._published, self._number = agent, published, number
        self._before = len(published())
        self._left = self._count_left()

    def _count_left(self) -> int:
        text = f"consumer {self._number} left"
        return sum(notice.text.startswith(text) for notice in self._agent.latest.notices)

    def is_void(self) -> bool:
        """On a machine that pauses for seconds the consumer expires, and its order with it: the round is
        void."""
        return self._count_left() > self._left

    def decision(self, action: str) -> dict[str, Any] | None:
        new = self._published()[self._before :]
        return next((decision for decision in new if decision["action"] == action), None)


def test_rule_limits_a_losing_consumer_and_releases_it(
    hub: tp.Context,
    endpoint_process: Callable[[], RemoteProcess],
    free_stream_id: int,
    wait_until: Callable[..., Any],
) -> None:
    source, reader = endpoint_process(), endpoint_process()
    source.call("produce", stream_id=free_stream_id, nslots=16)
    number = reader.call("consume", name="slow", stream_id=free_stream_id)
    slow = rule(name="slow", when="drops", above=5, then="limit", max_rate_hz=5, clear_for_ns=4000 * MS)

    def state() -> dict[str, Any]:
        found: dict[str, Any] = reader.call("state", name="slow")
        return found

    def poll(seconds: float) -> dict[str, Any]:
        reader.call("poll", name="slow", at_most=seconds)
        found: dict[str, Any] = reader.call("consumer_ledger", name="slow")
        return found

    def run_round(current: LimitRound) -> None:
        def is_limited() -> bool:
            # It polls so rarely that the ring wraps: nearly all frames are lost.
            poll(0.01)
            time.sleep(0.2)
            return current.is_void() or (current.decision("limit") is not None and state()["on_per_consumer"])

        wait_until(is_limited, timeout=60)
        if current.is_void():
            return
        decision = current.decision("limit")
        assert decision is not None
        assert (decision["by"], decision["consumer_id"], decision["max_rate_hz"]) == ("slow", number, 5)
        assert decision["reason"].startswith("drops ")
        # At five frames a second it keeps up, although it polls rarely.
        start, before = time.monotonic(), poll(0.05)
        time.sleep(1)
        after, elapsed = poll(0.05), time.monotonic() - start
        if not (current.is_void() or current.decision("release")):
            assert state()["mode"] == "rate_limited"
            assert after["received"] - before["received"] <= 5 * elapsed + 3
            assert after["dropped"]["rate_limited"] > before["dropped"].get("rate_limited", 0)
            checked.append("rate")

        def is_free() -> bool:
            poll(0.05)
            return current.is_void() or (
                current.decision("release") is not None and state()["mode"] == "stream"
            )

        wait_until(is_free, timeout=60)
        if not current.is_void():
            release = current.decision("release")
            assert release is not None
            assert (release["by"], release["consumer_id"]) == ("slow", number)
            assert release["reason"].startswith("drops ")
            checked.append("release")

    checked: list[str] = []
    with supervising(hub, slow) as agent, decisions(hub, wait_until) as published:
        source.call("offer_at", stream_id=free_stream_id, hz=300)
        wait_until(lambda: agent.latest.consumer(free_stream_id, number), timeout=60)
        for _ in range(LimitRound.ROUNDS):
            run_round(LimitRound(agent, published, number))
            if set(checked) == {"rate", "release"}:
                break
            wait_until(lambda: poll(0.05) and state()["mode"] == "stream", timeout=60)
        assert set(checked) == {"rate", "release"}, "the consumer expired in every round"
        source.call("stop_background")
        ledger = poll(0.3)
        assert ledger["span"] == ledger["received"] + sum(ledger["dropped"].values())


def test_manual_orders_last_until_released(
    hub: tp.Context,
    endpoint_process: Callable[[], RemoteProcess],
    free_stream_id: int,
    wait_until: Callable[..., Any],
) -> None:
    source, reader = endpoint_process(), endpoint_process()
    source.call("produce", stream_id=free_stream_id)
    number = str(reader.call("consume", name="one", stream_id=free_stream_id))
    stream, options = str(free_stream_id), ["--aeron-dir", hub.aeron_dir]

    def supervisor(*arguments: str) -> str:
        result = CliRunner().invoke(cli, ["supervisor", *arguments, *options])
        assert result.exit_code == 0, result.output
        return result.output

    with supervising(hub) as agent:
        wait_until(lambda: agent.latest.consumer(free_stream_id, int(number)) is not None, timeout=60)
        supervisor("limit", stream, number, "--hz", "4", "--reason", "try it")
        wait_until(lambda: reader.call("state", name="one")["on_per_consumer"], timeout=60)
        start = time.monotonic()
        source.call("offer_at", stream_id=free_stream_id, hz=200)
        reader.call("keep_polling", name="one")
        wait_until(lambda: reader.call("consumer_ledger", name="one")["span"] > 200, timeout=60)
        limited = reader.call("consumer_ledger", name="one")
        assert limited["received"] <= 4 * (time.monotonic() - start) + 3
        assert set(limited["dropped"]) <= {"rate_limited"}
        status = json.loads(supervisor("status", "--json"))
        assert status["manual"] == [{"stream_id": free_stream_id, "consumer_id": int(number)}]
        assert "limit" in supervisor("status")
        # A URI that no consumer can read is refused where it is given.
        refused = CliRunner().invoke(
            cli, ["supervisor", "redirect", stream, number, INCOMPLETE_URI, *options]
        )
        assert isinstance(refused.exception, CommandFailed)
        assert "control, control_stream is missing" in str(refused.exception)
        # Redirected, it reports the fallback; released, it gets every frame again.
        uri = fallback_uri()
        supervisor("redirect", stream, number, uri)
        wait_until(lambda: reader.call("state", name="one")["phase"] == "fallback", timeout=60)
        assert reader.call("state", name="one")["fallback_uri"] == uri
        supervisor("release", stream, number)
        wait_until(lambda: reader.call("state", name="one")["phase"] == "mapped", timeout=60)
        wait_until(lambda: reader.call("state", name="one")["mode"] == "stream", timeout=60)
        before = reader.call("consumer_ledger", name="one")
        wait_until(
            lambda: reader.call("consumer_ledger", name="one")["received"] > before["received"] + 200,
            timeout=60,
        )
        now = reader.call("consumer_ledger", name="one")
        assert set(now["dropped"]) <= {"rate_limited"}
        assert now["span"] == now["received"] + sum(now["dropped"].values())
        source.call("stop_background")
        reader.call("stop_background")
        with (
            hub.service("supervisor") as client,
            pytest.raises((RequestRejected, CommandFailed), match="no consumer"),
        ):
            client.call("limit", stream_id=free_stream_id, consumer_id=4, max_rate_hz=3)


class Dial(Service, name="dial"):
    """A service whose property a rule sets."""

    level = Property(1, minimum=0, maximum=9)


def test_stale_stream_is_flagged_and_a_service_reconfigured(
    hub: tp.Context, free_stream_id: int, wait_until: Callable[..., Any]
) -> None:
    stale = rule(name="stale", when="staleness", above=1.5, below=1.5, then="flag")
    reconfigure = rule(
        name="reconfigure",
        when="staleness",
        above=0.5,
        then="reconfigure",
        service="dial",
        key="level",
        value="7",
    )
    dial = Dial()
    with (
        hub.serve(dial),
        hub.producer(free_stream_id) as camera,
        supervising(hub, stale, reconfigure) as agent,
    ):
        camera.offer(np.zeros(1))
        wait_until(lambda: dial.level == 7, timeout=60)
        wait_until(lambda: [decision.action for decision in agent.decisions].count("flag") == 1, timeout=60)

        def is_unflagged() -> bool:
            camera.offer(np.zeros(1))
            return any(decision.action == "unflag" for decision in agent.decisions)

        wait_until(is_unflagged, timeout=60)
