"""Random writes into header rings, payload pools and superblocks of a running stream."""

from __future__ import annotations

import time

from tests.chaos.stage import Stage

SHARE = 1.0


def run(stage: Stage) -> None:
    """A stray writer changes words of the regions. A frame is then dropped, or is not what was published.

    A process that can write into a region can forge a frame, so payloads are not checked here: programs must
    go on, their ledgers must add up, and a new epoch must be clean.
    """
    rng = stage.rng
    producer = stage.start("producer", hz=300)
    consumer = stage.start("consumer")
    stage.checker.expect(stage.frames_flow(), "no frames flow before the first write")
    stage.restart_clock()
    while stage.has_time:
        for path in (path for epoch in stage.epochs() for path in epoch.iterdir() if path.is_file()):
            size = path.stat().st_size
            if size < 64:
                continue
            with path.open("r+b", buffering=0) as file:
                for _ in range(20):
                    file.seek(rng.randrange(size // 8) * 8)
                    file.write(rng.choice((rng.randbytes(8), bytes(8), b"\xff" * 8)))
                    stage.checker.count("stray writes")
        time.sleep(rng.uniform(0.01, 0.2))
    report = consumer.end()
    stage.programs.remove(consumer)
    stage.checker.expect(report is not None and report["balanced"], f"the consumer's ledger: {report}")
    stage.kill(producer)
    stage.start("producer", hz=300)
    stage.start("consumer")
    stage.checker.expect(stage.frames_flow(), "no frames flow in a new epoch")
