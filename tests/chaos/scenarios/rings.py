"""Random writes into header rings, payload pools and superblocks of a running stream."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from tests.chaos.stage import Stage

SHARE = 1.0
_CLEAN_FRAMES = 300


def run(stage: Stage) -> None:
    """A stray writer changes words of the regions. A frame is then dropped, or is not what was published.

    A process that can write into a region can forge a frame, so payloads are not checked here: programs must
    continue, their ledgers must add up, and a new epoch must be clean.
    """
    rng = stage.rng
    producer = stage.start("producer", hz=300)
    consumer = stage.start("consumer", is_exposed=True)
    stage.checker.expect(stage.frames_flow(), "no frames flow before the first write")
    stage.restart_clock()
    while stage.has_time:
        for epoch in stage.epochs():
            # The epoch may end at this moment.
            with contextlib.suppress(OSError):
                for path in sorted(epoch.iterdir()):
                    _scribble(stage, path)
        time.sleep(rng.uniform(0.01, 0.2))
    stage.end(consumer)
    stage.kill(producer)
    stage.start("producer", hz=300)
    clean = stage.start("consumer")
    # It checks every word of the new epoch's frames.
    stage.checker.expect(
        stage.advances(clean, "checked", _CLEAN_FRAMES), f"a new epoch does not flow: {clean.counts}"
    )


def _scribble(stage: Stage, path: Path) -> None:
    """Twenty words of a region, among them those of its superblock, get another value."""
    size = path.stat().st_size
    if size < 64:
        return
    with path.open("r+b", buffering=0) as file:
        for _ in range(20):
            file.seek(stage.rng.randrange(size // 8) * 8)
            file.write(stage.rng.choice((stage.rng.randbytes(8), bytes(8), b"\xff" * 8)))
            stage.checker.count("stray writes")
