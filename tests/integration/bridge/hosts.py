"""Two hosts on one machine, each with its own media driver, driver, shared memory and namespace.

They are connected by UDP only.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tensorpool as tp
from tensorpool.bridge import BridgeAgent, BridgeSettings
from tensorpool.runtime.config import Config
from tensorpool.runtime.runner import Runner

DEADLINE_S = 60.0


def channel(port: int, *parameters: str) -> str:
    return "|".join((f"aeron:udp?endpoint=127.0.0.1:{port}", *parameters))


def settings_of(**table: Any) -> BridgeSettings:
    """Settings as loaded from a file."""
    loaded: BridgeSettings = Config.load(BridgeSettings, tables={"bridge": table}, environ={})[BridgeSettings]
    return loaded


@dataclass
class Host:
    """A context and the bridges of one host."""

    name: str
    context: tp.Context
    _stack: ExitStack = field(repr=False)
    bridges: list[Runner] = field(default_factory=list)

    def bridge(self, settings: BridgeSettings) -> BridgeAgent:
        agent = BridgeAgent(self.context, settings)
        runner = Runner(agent)
        runner.start()
        self.bridges.append(runner)
        self._stack.callback(runner.close)
        return agent


@dataclass
class Pair:
    """A sending and a receiving host, and the ports between them."""

    here: Host
    there: Host
    ports: tuple[int, int, int]
    wait_until: Callable[..., Any]

    def common(self, **settings: Any) -> dict[str, Any]:
        payload, control, metadata = self.ports
        return {
            "payload_channel": channel(payload),
            "control_channel": channel(control),
            "metadata_channel": channel(metadata),
            **settings,
        }

    def connect(
        self, source: int, dest: int, *, mapping: dict[str, Any] | None = None, **settings: Any
    ) -> tuple[BridgeAgent, BridgeAgent]:
        """Bridges at both ends for one stream; returns when both are connected."""
        mappings = [{"source_stream_id": source, "dest_stream_id": dest, **(mapping or {})}]
        table = self.common(mappings=mappings, **settings)
        receiver = self.there.bridge(settings_of(instance_id="there", direction="receive", **table))
        sender = self.here.bridge(settings_of(instance_id="here", direction="send", **table))
        self.wait_until(lambda: sender.is_ready() and receiver.is_ready(), timeout=DEADLINE_S)
        self.wait_until(lambda: sender.rows()[0]["connected"], timeout=DEADLINE_S)
        return sender, receiver


def flows(
    sender: BridgeAgent, receiver: BridgeAgent, producer: tp.Producer, consumer: tp.Consumer | None = None
) -> bool:
    """Whether a frame that is offered now would be delivered."""
    sent, received = row(sender), row(receiver)
    return bool(
        producer.is_connected
        and sent["connected"]
        and sent["epoch"] == received["source_epoch"] == str(producer.epoch)
        and received["destination"] == "attached"
        and (consumer is None or (consumer.is_connected and str(consumer.epoch) == received["epoch"]))
    )


def row(agent: BridgeAgent, number: int = 0) -> Any:
    return agent.rows()[number]


def open_host(name: str, aeron_dir: Path, base: Path, stack: ExitStack, **options: Any) -> Host:
    defaults: dict[str, Any] = {"mode": "embedded", "announce_period": 0.2, "namespace": name}
    base.mkdir(mode=0o700, exist_ok=True)
    context = tp.open(aeron_dir=aeron_dir, shm_base_dir=base, **(defaults | options))
    return Host(name, stack.enter_context(context), stack)
