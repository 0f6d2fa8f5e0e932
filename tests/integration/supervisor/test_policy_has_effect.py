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
from tensorpool.errors import CommandFailed, Rejected
from tensorpool.runtime.runner import Runner
from tensorpool.service import Event, Property, Service
from tensorpool.supervisor.agent import SupervisorAgent
from tensorpool.supervisor.config import Rule, SupervisorSettings
from tests.remote import Remote

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
def decisions(ctx: tp.Context, wait_until: Callable[..., Any]) -> Iterator[Callable[[], dict[str, Any]]]:
    """The next decision on the status stream, as anybody would hear it."""
    streams = ctx.service_streams
    mailbox = _native.Mailbox(ctx._conductor, streams.channel, streams.status, ["service:supervisor"])
    wait_until(lambda: mailbox.is_connected, timeout=60)
    heard: list[dict[str, Any]] = []

    def next_one() -> dict[str, Any]:
        def has_one() -> bool:
            events = (Event.decode(message) for message in mailbox.take(64))
            heard.extend(json.loads(str(one.value)) for one in events if one.key == "decision")
            return bool(heard)

        wait_until(has_one, timeout=60)
        return heard.pop(0)

    try:
        yield next_one
    finally:
        mailbox.close()


def test_a_consumer_that_loses_frames_is_slowed_down_and_let_go_again(
    hub: tp.Context,
    station: Callable[[], Remote],
    free_stream_id: int,
    wait_until: Callable[..., Any],
) -> None:
    source, reader = station(), station()
    source.call("produce", stream_id=free_stream_id, nslots=16)
    number = reader.call("consume", name="slow", stream_id=free_stream_id)
    slow = rule(name="slow", when="drops", above=5, then="limit", max_rate_hz=5, clear_for_ns=4000 * MS)
    with supervising(hub, slow) as agent, decisions(hub, wait_until) as said:
        source.call("offer_at", stream_id=free_stream_id, hz=300)

        def falls_behind() -> bool:
            # It looks so seldom that the ring has come round: nearly all are lost.
            reader.call("take", name="slow", at_most=0.01)
            time.sleep(0.2)
            return reader.call("standing", name="slow")["mode"] == "rate_limited"

        wait_until(falls_behind, timeout=60)
        decision = said()
        assert (decision["action"], decision["by"], decision["consumer_id"]) == ("limit", "slow", number)
        assert decision["reason"].startswith("drops ")
        assert decision["max_rate_hz"] == 5
        wait_until(lambda: reader.call("standing", name="slow")["on_own"], timeout=60)
        # At five a second it keeps up, whatever it does in between.
        reader.call("take", name="slow", at_most=0.05)
        began, before = time.monotonic(), reader.call("consumer_ledger", name="slow")
        time.sleep(1)
        reader.call("take", name="slow", at_most=0.05)
        after, elapsed = reader.call("consumer_ledger", name="slow"), time.monotonic() - began
        if agent._policy.active:
            assert after["received"] - before["received"] <= 5 * elapsed + 3
            assert after["dropped"]["rate_limited"] > before["dropped"].get("rate_limited", 0)

        def is_free() -> bool:
            reader.call("take", name="slow", at_most=0.05)
            return reader.call("standing", name="slow")["mode"] == "stream" and not agent._policy.active

        wait_until(is_free, timeout=60)
        # On a machine that stands still for seconds the consumer counts as gone, and so does its order.
        if not any(one.text.endswith(f"{number} left") for one in agent.latest.notices):
            undone = said()
            assert (undone["action"], undone["by"]) == ("release", "slow")
        source.call("rest")
        ledger = reader.call("consumer_ledger", name="slow")
        assert ledger["span"] == ledger["received"] + sum(ledger["dropped"].values())


def test_what_is_ordered_by_hand_holds_until_it_is_released(
    hub: tp.Context,
    station: Callable[[], Remote],
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
            pytest.raises((Rejected, CommandFailed), match="no consumer"),
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
