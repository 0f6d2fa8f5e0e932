"""Rules and orders by hand, with their effect on real consumers in another process."""

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
from tests.remote_process import RemoteProcess

URI = "bridge://7?payload=aeron%3Audp%3Fendpoint%3D127.0.0.1%3A9&payload_stream=1&stream=5"
MS = 1_000_000


def rule(**fields: Any) -> Rule:
    quick = {"for_ns": 300 * MS, "clear_for_ns": 1000 * MS, "cool_down_ns": 100 * MS}
    return Rule(**{**quick, **fields})


@contextmanager
def supervising(ctx: tp.Context, *rules: Rule) -> Iterator[SupervisorAgent]:
    agent = SupervisorAgent(ctx, settings=SupervisorSettings(rules=rules, look_ns=100 * MS))
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
    """All decisions so far, as anybody hears them on the status stream."""
    streams = ctx.service_streams
    mailbox = _native.Mailbox(
        ctx.connection.conductor, streams.channel, streams.status, ["service:supervisor"]
    )
    wait_until(lambda: mailbox.is_connected, timeout=60)
    heard: list[dict[str, Any]] = []

    def so_far() -> list[dict[str, Any]]:
        events = (Event.decode(message) for message in mailbox.take(64))
        heard.extend(json.loads(str(one.value)) for one in events if one.key == "decision")
        return heard

    try:
        yield so_far
    finally:
        mailbox.close()


class Slowed:
    """One time that a consumer falls behind, is slowed down, keeps up, and is let go again."""

    ROUNDS = 5

    def __init__(self, agent: SupervisorAgent, said: Callable[[], list[dict[str, Any]]], number: int) -> None:
        self._agent, self._said, self._number = agent, said, number
        self._before = len(said())
        self._left = self._count_left()

    def _count_left(self) -> int:
        gone = f"consumer {self._number} left"
        return sum(one.text == gone for one in self._agent.latest.notices)

    def is_void(self) -> bool:
        """On a machine that stands still for seconds the consumer counts as gone, and its order goes along:
        then there is nothing to be seen this time."""
        return self._count_left() > self._left

    def decision(self, action: str) -> dict[str, Any] | None:
        new = self._said()[self._before :]
        return next((one for one in new if one["action"] == action), None)


def test_a_consumer_that_loses_frames_is_slowed_down_and_let_go_again(
    hub: tp.Context,
    station: Callable[[], RemoteProcess],
    free_stream_id: int,
    wait_until: Callable[..., Any],
) -> None:
    source, reader = station(), station()
    source.call("produce", stream_id=free_stream_id, nslots=16)
    number = reader.call("consume", name="slow", stream_id=free_stream_id)
    slow = rule(name="slow", when="drops", above=5, then="limit", max_rate_hz=5, clear_for_ns=4000 * MS)

    def standing() -> dict[str, Any]:
        found: dict[str, Any] = reader.call("standing", name="slow")
        return found

    def look(seconds: float) -> dict[str, Any]:
        reader.call("take", name="slow", at_most=seconds)
        found: dict[str, Any] = reader.call("consumer_ledger", name="slow")
        return found

    def one_time(seen: Slowed) -> None:
        def is_limited() -> bool:
            # It looks so seldom that the ring has come round: nearly all are lost.
            look(0.01)
            time.sleep(0.2)
            return seen.is_void() or (seen.decision("limit") is not None and standing()["on_own"])

        wait_until(is_limited, timeout=60)
        if seen.is_void():
            return
        decision = seen.decision("limit")
        assert decision is not None
        assert (decision["by"], decision["consumer_id"], decision["max_rate_hz"]) == ("slow", number, 5)
        assert decision["reason"].startswith("drops ")
        # At five a second it keeps up, whatever it does in between.
        began, before = time.monotonic(), look(0.05)
        time.sleep(1)
        after, elapsed = look(0.05), time.monotonic() - began
        if not (seen.is_void() or seen.decision("release")):
            assert standing()["mode"] == "rate_limited"
            assert after["received"] - before["received"] <= 5 * elapsed + 3
            assert after["dropped"]["rate_limited"] > before["dropped"].get("rate_limited", 0)
            checked.append("rate")

        def is_free() -> bool:
            look(0.05)
            return seen.is_void() or (seen.decision("release") is not None and standing()["mode"] == "stream")

        wait_until(is_free, timeout=60)
        if not seen.is_void():
            undone = seen.decision("release")
            assert undone is not None
            assert (undone["by"], undone["consumer_id"]) == ("slow", number)
            assert undone["reason"].startswith("drops ")
            checked.append("release")

    checked: list[str] = []
    with supervising(hub, slow) as agent, decisions(hub, wait_until) as said:
        source.call("offer_at", stream_id=free_stream_id, hz=300)
        wait_until(lambda: agent.latest.consumer(free_stream_id, number), timeout=60)
        for _ in range(Slowed.ROUNDS):
            one_time(Slowed(agent, said, number))
            if set(checked) == {"rate", "release"}:
                break
            wait_until(lambda: look(0.05) and standing()["mode"] == "stream", timeout=60)
        assert set(checked) == {"rate", "release"}, "it counted as gone again and again"
        source.call("rest")
        ledger = look(0.3)
        assert ledger["span"] == ledger["received"] + sum(ledger["dropped"].values())


def test_what_is_ordered_by_hand_holds_until_it_is_released(
    hub: tp.Context,
    station: Callable[[], RemoteProcess],
    free_stream_id: int,
    wait_until: Callable[..., Any],
) -> None:
    source, reader = station(), station()
    source.call("produce", stream_id=free_stream_id)
    number = str(reader.call("consume", name="one", stream_id=free_stream_id))
    stream, place = str(free_stream_id), ["--aeron-dir", hub.aeron_dir]

    def tell(*words: str) -> str:
        result = CliRunner().invoke(cli, ["supervisor", *words, *place])
        assert result.exit_code == 0, result.output
        return result.output

    with supervising(hub) as agent:
        wait_until(lambda: agent.latest.consumer(free_stream_id, int(number)) is not None, timeout=60)
        tell("limit", stream, number, "--hz", "4", "--reason", "try it")
        wait_until(lambda: reader.call("standing", name="one")["on_own"], timeout=60)
        began = time.monotonic()
        source.call("offer_at", stream_id=free_stream_id, hz=200)
        reader.call("take_always", name="one")
        wait_until(lambda: reader.call("consumer_ledger", name="one")["span"] > 200, timeout=60)
        held = reader.call("consumer_ledger", name="one")
        assert held["received"] <= 4 * (time.monotonic() - began) + 3
        assert set(held["dropped"]) <= {"rate_limited"}
        status = json.loads(tell("status", "--json"))
        assert status["manual"] == [{"stream_id": free_stream_id, "consumer_id": int(number)}]
        assert "limit" in tell("status")
        # Redirected, it says so; released, it is back, and gets every frame again.
        tell("redirect", stream, number, URI)
        wait_until(lambda: reader.call("standing", name="one")["phase"] == "fallback", timeout=60)
        assert reader.call("standing", name="one")["fallback_uri"] == URI
        tell("release", stream, number)
        wait_until(lambda: reader.call("standing", name="one")["phase"] == "mapped", timeout=60)
        wait_until(lambda: reader.call("standing", name="one")["mode"] == "stream", timeout=60)
        before = reader.call("consumer_ledger", name="one")
        wait_until(
            lambda: reader.call("consumer_ledger", name="one")["received"] > before["received"] + 200,
            timeout=60,
        )
        now = reader.call("consumer_ledger", name="one")
        assert set(now["dropped"]) <= {"rate_limited"}
        assert now["span"] == now["received"] + sum(now["dropped"].values())
        source.call("rest")
        reader.call("rest")
        with (
            hub.service("supervisor") as client,
            pytest.raises((RequestRejected, CommandFailed), match="no consumer"),
        ):
            client.call("limit", stream_id=free_stream_id, consumer_id=4, max_rate_hz=3)


class Dial(Service, name="dial"):
    """Something that a rule may turn."""

    level = Property(1, minimum=0, maximum=9)


def test_a_stream_that_falls_silent_is_flagged_and_a_service_is_told(
    hub: tp.Context, free_stream_id: int, wait_until: Callable[..., Any]
) -> None:
    silent = rule(name="silent", when="staleness", above=1.5, below=1.5, then="flag")
    turn = rule(
        name="turn", when="staleness", above=0.5, then="reconfigure", service="dial", key="level", value="7"
    )
    dial = Dial()
    with hub.serve(dial), hub.producer(free_stream_id) as camera, supervising(hub, silent, turn) as agent:
        camera.offer(np.zeros(1))
        wait_until(lambda: dial.level == 7, timeout=60)
        wait_until(lambda: [one.action for one in agent.decisions].count("flag") == 1, timeout=60)

        def is_good_again() -> bool:
            camera.offer(np.zeros(1))
            return any(one.action == "unflag" for one in agent.decisions)

        wait_until(is_good_again, timeout=60)
