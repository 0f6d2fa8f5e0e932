"""Two hosts with loss, repeats, reordering, and corruption of headers and payloads between them.

The network is a relay of datagrams, because many kernels have no `netem`. Each host has a media driver, an
SHM driver and a bridge of its own, all on one machine.
"""

from __future__ import annotations

import time
from contextlib import ExitStack

from tests.chaos.stage import DEST_STREAM, Program, Stage
from tests.integration.bridge.lossy_relay import Impairments, LossyRelay
from tests.ports import free_port

SHARE = 2.0
_BRIDGE = """
[bridge]
instance_id = "chaos-{direction}"
direction = "{direction}"
payload_channel = "aeron:udp?endpoint=127.0.0.1:{payload}"
control_channel = "aeron:udp?endpoint=127.0.0.1:{control}"
forward_metadata = false

[[bridge.mappings]]
source_stream_id = {source}
dest_stream_id = {dest}
"""


def run(stage: Stage) -> None:
    """Bridges a stream over a bad network. What arrives is what was published, and frames flow at the end."""
    rng = stage.rng
    there = stage.second_host()
    ports = {"payload": free_port(), "control": free_port()}
    with ExitStack() as stack:
        stack.enter_context(there.started())
        bad = Impairments(
            drop=rng.uniform(0, 0.03), repeat=rng.uniform(0, 0.03), reorder=rng.uniform(0, 0.05),
            corrupt=rng.uniform(0, 0.02), corrupt_header=rng.uniform(0, 0.005),
        )  # fmt: skip
        relays = {
            name: stack.enter_context(LossyRelay(port, bad, rng.randrange(1 << 30)))
            for name, port in ports.items()
        }
        through = {name: relay.port for name, relay in relays.items()}
        for host in (stage, there):
            stage.checker.expect(host.driver_answers(), "a driver does not answer")
        receiver = _start_bridge(there, "receive", stage.stream_id, ports)
        sender = _start_bridge(stage, "send", stage.stream_id, through)
        stage.start("producer", hz=200)
        there.start("consumer")
        there.start("consumer")
        try:
            stage.checker.expect(there.frames_flow(), "no frames flow between the hosts")
            stage.restart_clock()
            while stage.has_time:
                time.sleep(rng.uniform(0.5, 3.0))
                if rng.random() < 0.2:
                    for relay in relays.values():
                        relay.disconnect()
                    time.sleep(rng.uniform(0.1, 2.0))
                    for relay in relays.values():
                        relay.reconnect()
                    stage.checker.count("network interrupted")
                stage.programs_live("on a bad network")
                there.programs_live("on a bad network")
                for bridge in (sender, receiver):
                    status = bridge.process.poll()
                    stage.checker.expect(status is None, f"the {bridge.role} has ended with {status}")
            for relay in relays.values():
                relay.impairments = Impairments()
            stage.checker.expect(there.frames_flow(), "no frames flow after the network has recovered")
        finally:
            for name in ("dropped", "repeated", "reordered", "corrupted"):
                stage.checker.count(f"datagrams {name}", sum(getattr(r, name) for r in relays.values()))
            there.end_programs()
            stage.end_programs()
            stage.end_role(sender)
            there.end_role(receiver)


def _start_bridge(host: Stage, direction: str, source: int, ports: dict[str, int]) -> Program:
    text = _BRIDGE.format(direction=direction, source=source, dest=DEST_STREAM, **ports)
    return host.start_role("bridge", text)
