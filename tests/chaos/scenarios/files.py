"""Truncated, swapped, symlinked and removed region files of a running stream."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from tests.chaos.stage import Stage

SHARE = 1.5


def run(stage: Stage) -> None:
    """Another process of the user damages files. It may cost the stream an epoch, and no process its life."""
    rng = stage.rng
    producer = stage.start("producer", hz=300)
    stage.start("consumer")
    stage.start("consumer")
    stage.checker.expect(stage.frames_flow(), "no frames flow before the first damage")
    stage.restart_clock()
    while stage.has_time:
        files = [path for epoch in stage.epochs() for path in sorted(epoch.iterdir()) if path.is_file()]
        if len(files) < 2:
            time.sleep(0.05)
            continue
        kind = rng.choice(("truncate", "swap", "symlink", "remove"))
        path, other = rng.sample(files, 2)
        # The files may belong to an epoch that ends at this moment.
        with contextlib.suppress(OSError):
            _damage(kind, path, other, rng.choice((0, 1, 63, 64, 4096, rng.randrange(1 << 18))))
            stage.checker.count(f"files damaged: {kind}")
        time.sleep(rng.uniform(0.05, 1.0))
        stage.programs_live(f"after a {kind}")
        # Who maps the epoch next notices a swapped or removed file. A new producer has a new epoch.
        if kind != "truncate":
            stage.kill(producer)
            producer = stage.start("producer", hz=300)
        stage.checker.expect(stage.frames_flow(), f"no frames flow after a {kind}")


def _damage(kind: str, path: Path, other: Path, size: int) -> None:
    spare = path.with_name("spare")
    if kind == "truncate":
        os.truncate(path, min(size, path.stat().st_size))
    elif kind == "swap":
        path.rename(spare)
        other.rename(path)
        spare.rename(other)
    else:
        path.unlink()
        if kind == "symlink":
            path.symlink_to(other)
