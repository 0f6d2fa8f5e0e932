"""How the demo's processes speak to their director: arguments and words down, JSON lines up."""

from __future__ import annotations

import argparse
import json
import select
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from .. import context

_PERIOD_S = 0.25


@dataclass(frozen=True, slots=True)
class Role:
    """What a process is told when it starts."""

    aeron_dir: str
    base: Path
    recording: Path
    stream_id: int
    seconds: float
    fps: int
    work_s: float = 0.0
    policy: Literal["stream", "latest"] = "stream"

    def arguments(self) -> list[str]:
        return [f"--{name}={value}" for name, value in asdict(self).items()]

    def attach(self) -> context.Context:
        """A connection to the demo's own driver, and to no other."""
        return context.open(
            "driver", aeron_dir=self.aeron_dir, media_driver="external", shm_base_dir=self.base
        )


def role_arguments() -> Role:
    parser = argparse.ArgumentParser()
    for name, kind in (
        ("aeron_dir", str), ("base", Path), ("recording", Path), ("stream_id", int), ("seconds", float),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=kind, required=True)
    parser.add_argument("--fps", type=int, required=True)
    parser.add_argument("--work_s", type=float, default=0.0)
    parser.add_argument("--policy", default="stream")
    return Role(**vars(parser.parse_args()))


def was_told() -> bool:
    """Whether the director has said another word, or is gone."""
    return bool(select.select([sys.stdin], [], [], 0)[0])


class Reports:
    """Writes JSON lines to stdout; tells when the next sample is due."""

    def __init__(self) -> None:
        self._next = time.monotonic()

    def due(self) -> bool:
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + _PERIOD_S
        return True

    def say(self, kind: str, **fields: Any) -> None:
        """`at_ns` is on the clock that all processes of a machine share."""
        sys.stdout.write(json.dumps({"kind": kind, "at_ns": time.monotonic_ns(), **fields}) + "\n")
        sys.stdout.flush()
