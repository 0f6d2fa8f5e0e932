"""Loss in the media driver of the receiving host, by Aeron's interceptor: whole frames and an exact ledger.

The interceptor drops frames, announces and ledgers alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tests.e2e.commandline import TIMEOUT_S
from tests.e2e.test_bridge_command import BridgeHost, hosts

__all__ = ["hosts"]
FRAMES = 300
SIZE = 40_000
_DATA = 1 << 1


def content(seq: int) -> np.ndarray:
    return ((np.arange(SIZE, dtype=np.uint32) * 7 + seq * 31) >> 2).astype(np.uint8)


def lossy(host: BridgeHost, rate: float) -> BridgeHost:
    """The host, with a media driver that drops this share of received data frames."""
    more = {
        "AERON_UDP_CHANNEL_INCOMING_INTERCEPTORS": "loss",
        "AERON_UDP_CHANNEL_TRANSPORT_BINDINGS_LOSS_ARGS": f"rate={rate}|seed=7|recv-msg-mask={_DATA:x}",
    }
    return replace(host, line=replace(host.line, more={**host.line.more, **more}))


@pytest.mark.requirement("bridge-5.3-1")
@pytest.mark.parametrize(
    ("rate", "reliable"),
    [
        pytest.param(0.001, True, marks=pytest.mark.long),
        pytest.param(0.01, True, marks=pytest.mark.long),
        pytest.param(0.05, True, marks=pytest.mark.long),
        pytest.param(0.001, False, marks=pytest.mark.long),
        (0.01, False),
        pytest.param(0.05, False, marks=pytest.mark.long),
    ],
)
def test_loss_drops_whole_frames_and_counts_them(
    hosts: tuple[BridgeHost, BridgeHost], wait_until: Callable[..., Any], rate: float, reliable: bool
):
    here, there = hosts[0], lossy(hosts[1], rate)
    text = here.config.read_text().replace("[bridge]\n", "[bridge]\nassembly_timeout_ms = 2000\n")
    if not reliable:
        head, rest = text.split('payload_channel = "', 1)
        quote = rest.index('"')
        unreliable = there.config.with_name("unreliable.toml")
        unreliable.write_text(f'{head}payload_channel = "{rest[:quote]}|reliable=false{rest[quote:]}')
        there = replace(there, config=unreliable)
    here.config.write_text(text)
    with ExitStack() as stack:
        for host in (here, there):
            stack.enter_context(host.runs("driver"))
        stack.enter_context(there.runs("bridge", "--direction", "receive"))
        stack.enter_context(here.runs("bridge"))
        producer = stack.enter_context(
            stack.enter_context(here.open()).producer(20_000, pools=["64KiB"], nslots=64)
        )
        consumer = stack.enter_context(stack.enter_context(there.open()).consumer(50_000))
        seen = send_all(producer, consumer, wait_until)
        ledger = settled(there, consumer, seen, wait_until)
        assert ledger["exact"]
        assert ledger["published"] == FRAMES == ledger["delivered"] + sum(ledger["dropped"].values())
        assert ledger["delivered"] == len(seen)
        assert seen == sorted(set(seen))
        assert ledger["dropped"]["network"] + len(seen) == FRAMES - ledger["dropped"]["receiver"]
        if reliable:
            assert ledger["dropped"]["network"] == 0, "lost datagrams are retransmitted"
        elif rate > 0.001:
            assert ledger["dropped"]["network"] > 0, "the interceptor drops datagrams"


def receive(consumer: tp.Consumer, seen: list[int]) -> None:
    for frame in consumer.poll():
        with frame:
            assert np.array_equal(frame.array, content(frame.seq)), frame.seq
        seen.append(frame.seq)


def send_all(producer: tp.Producer, consumer: tp.Consumer, wait_until: Callable[..., Any]) -> list[int]:
    wait_until(lambda: producer.is_connected and consumer.epoch is not None, timeout=TIMEOUT_S)
    seen: list[int] = []
    for number in range(FRAMES):
        producer.offer(content(number))
        time.sleep(0.005)
        receive(consumer, seen)
    return seen


def settled(
    there: BridgeHost, consumer: tp.Consumer, seen: list[int], wait_until: Callable[..., Any]
) -> dict[str, Any]:
    """The ledger when it includes all frames and no longer changes."""
    before: dict[str, Any] = {}

    def final_ledger() -> Any:
        nonlocal before
        time.sleep(0.5)
        receive(consumer, seen)
        [row] = there.line.json("bridge", "status")["mappings"]
        ledger = row["ledger"] or {}
        is_same, before = ledger == before, ledger
        return ledger if is_same and ledger.get("published") == FRAMES else None

    ledger: dict[str, Any] = wait_until(final_ledger, timeout=TIMEOUT_S)
    return ledger
