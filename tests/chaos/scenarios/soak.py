"""A dozen programs side by side, without faults, until the time is over."""

from __future__ import annotations

import time

from tests.chaos.stage import Stage

SHARE = 3.0
_CONSUMERS = 9


def run(stage: Stage) -> None:
    """Every consumer gets frames all the time, and all ledgers add up."""
    stage.start("producer", hz=500)
    for _ in range(_CONSUMERS):
        stage.start("consumer")
    stage.start("recorder", root=str(stage.work / "recording"))
    stage.checker.expect(stage.frames_flow(), "no frames flow")
    stage.restart_clock()
    while stage.has_time:
        time.sleep(0.5)
        for program in stage.programs:
            stage.checker.expect(program.process.poll() is None, f"a {program.role} has ended by itself")
    stage.checker.expect(stage.frames_flow(), "no frames flow at the end")
    stage.end_programs()
    stage.checker.recording(stage.work / "recording")
