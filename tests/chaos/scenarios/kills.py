"""Kill -9 of every role at random moments, also within half a second of its start."""

from __future__ import annotations

import time

from tests.chaos.stage import Program, Stage
from tests.ports import free_port

SHARE = 5.0
_PROGRAMS = ("producer", "consumer", "other consumer", "recorder")
_COMMANDS = ("bridge", "registry", "supervisor")
_BRIDGE = """
[bridge]
instance_id = "chaos"
payload_channel = "aeron:udp?endpoint=127.0.0.1:{payload}"
control_channel = "aeron:udp?endpoint=127.0.0.1:{control}"
forward_metadata = false

[[bridge.mappings]]
source_stream_id = {source}
dest_stream_id = 30000
"""


def run(stage: Stage) -> None:
    """Kills one program after the other; a new one takes its place, and frames flow again at the end."""
    rng, root = stage.rng, stage.work / "recording"
    living: dict[str, Program] = {}
    bridge = _BRIDGE.format(payload=free_port(), control=free_port(), source=stage.stream_id)

    def start(role: str) -> None:
        if role == "producer":
            living[role] = stage.start(role, hz=300)
        elif role == "recorder":
            living[role] = stage.start(role, root=str(root))
        elif role in _COMMANDS:
            living[role] = stage.start_role(role, bridge if role == "bridge" else "")
        else:
            living[role] = stage.start("consumer")

    try:
        for role in (*_PROGRAMS, *_COMMANDS):
            start(role)
        stage.checker.expect(stage.frames_flow(), "no frames flow before the first fault")
        stage.restart_clock()
        while stage.has_time:
            # Half of the kills hit a program that is still starting.
            time.sleep(rng.uniform(0.0, 0.5) if rng.random() < 0.5 else rng.uniform(0.5, 2.0))
            role = rng.choice([*_PROGRAMS, *_COMMANDS, "driver"])
            if role == "driver":
                stage.restart_driver()
            elif role in _COMMANDS:
                living[role].kill()
                stage.checker.count(f"{role} killed")
                start(role)
            else:
                stage.kill(living[role])
                start(role)
        stage.checker.expect(stage.frames_flow(), "no frames flow after the last kill")
        for role in _COMMANDS:
            stage.checker.expect(
                stage.role_is_ready(living[role]), f"the {role} is not ready after the last kill"
            )
        epochs = stage.epochs()
        stage.checker.expect(len(epochs) <= 2, f"more than one epoch is left beside its successor: {epochs}")
    finally:
        for role in _COMMANDS:
            if role in living:
                stage.end_role(living[role])
    stage.end_programs()
    stage.checker.recording(root)
