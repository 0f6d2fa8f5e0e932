"""Pauses shorter and longer than the grace of a lease, with takeovers by another producer."""

from __future__ import annotations

import time

from tests.chaos.stage import GRACE_S, Stage

SHARE = 2.0


def run(stage: Stage) -> None:
    """Pauses programs; a second producer takes the stream over whenever the first loses its lease."""
    rng = stage.rng
    programs = [stage.start("producer", hz=300), stage.start("producer", hz=300)]
    programs += [stage.start("consumer"), stage.start("consumer")]
    stage.checker.expect(stage.frames_flow(), "no frames flow before the first fault")
    stage.restart_clock()
    while stage.has_time:
        program = rng.choice(programs)
        is_long = rng.random() < 0.5
        program.pause(rng.uniform(GRACE_S * 1.5, GRACE_S * 6) if is_long else rng.uniform(0.01, GRACE_S / 2))
        stage.checker.count(f"{program.role} paused {'longer' if is_long else 'shorter'} than the grace")
        time.sleep(rng.uniform(0.1, 1.0))
    stage.checker.expect(stage.frames_flow(), "no frames flow after the last pause")
