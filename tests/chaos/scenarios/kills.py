"""Kill -9 of every role at random moments, also within half a second of its start."""

from __future__ import annotations

import time

from tests.chaos.stage import Program, Stage

SHARE = 3.0


def run(stage: Stage) -> None:
    """Kills one program after the other; a new one takes its place, and frames flow again at the end."""
    rng, root = stage.rng, stage.work / "recording"
    living: dict[str, Program] = {}

    def start(role: str) -> None:
        if role == "producer":
            living[role] = stage.start(role, hz=300)
        elif role == "recorder":
            living[role] = stage.start(role, root=str(root))
        else:
            living[role] = stage.start("consumer")

    for role in ("producer", "consumer", "other consumer", "recorder"):
        start(role)
    stage.checker.expect(stage.frames_flow(), "no frames flow before the first fault")
    stage.restart_clock()
    while stage.has_time:
        # Half of the kills hit a program that is still starting.
        time.sleep(rng.uniform(0.0, 0.5) if rng.random() < 0.5 else rng.uniform(0.5, 3.0))
        role = rng.choice([*living, "driver"])
        if role == "driver":
            stage.restart_driver()
        else:
            stage.kill(living[role])
            start(role)
    stage.checker.expect(stage.frames_flow(), "no frames flow after the last kill")
    epochs = stage.epochs()
    stage.checker.expect(len(epochs) <= 2, f"more than one epoch is left beside its successor: {epochs}")
    stage.end_programs()
    stage.checker.recording(root)
