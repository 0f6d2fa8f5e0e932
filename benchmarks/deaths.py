"""How soon the others know: each part of a system is killed, and what its clients hear is timed.

    python -m benchmarks.deaths [--rounds 5]

Default settings, real processes, everybody of one user. The table in docs/explanation is made of it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import tensorpool as tp

from .machine import describe

_STREAM = 10_000
_PATIENCE_S = 60.0

CASES = {
    "the producer is killed": ("producer", signal.SIGKILL, {"consumer": "unmapped"}),
    "the driver is killed": (
        "driver", signal.SIGKILL, {"consumer": "driver_lost", "producer": "driver_lost"},
    ),
    "the driver is told to stop": (
        "driver", signal.SIGTERM, {"consumer": "driver_shutdown", "producer": "driver_shutdown"},
    ),
    "the media driver is killed": (
        "media_driver", signal.SIGKILL, {"consumer": "media_driver_lost", "producer": "media_driver_lost"},
    ),
}  # fmt: skip


class Part:
    """A process and what it has said: JSON lines, each with a kind and a time."""

    def __init__(self, role: str, place: Path) -> None:
        command = [sys.executable, "-m", "benchmarks.deaths", "--role", role, "--place", str(place)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._said: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self._said.append(json.loads(line))
                self._changed.notify_all()

    def wait_for(self, kind: str, after_ns: int = 0) -> int:
        """When it was; raises TimeoutError if nothing of the kind is heard."""

        def heard() -> int | None:
            return next(
                (s["at_ns"] for s in self._said if s["kind"] == kind and s["at_ns"] >= after_ns), None
            )

        with self._changed:
            at_ns: int | None = self._changed.wait_for(heard, _PATIENCE_S)
        if at_ns is None:
            raise TimeoutError(f"nobody said {kind}")
        return at_ns

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._reader.join()


def _round(case: str) -> dict[str, float]:
    """How long it took until each of them knew, in milliseconds."""
    victim, number, heard = CASES[case]
    with ExitStack() as stack:
        place = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="tensorpool-bench-", dir="/dev/shm"))
        )
        os.environ["XDG_STATE_HOME"] = str(place / "state")
        parts: dict[str, Part] = {}
        for role in ("media_driver", "driver", "producer", "consumer"):
            parts[role] = Part(role, place)
            stack.callback(parts[role].end)
            parts[role].wait_for("up")
        parts["consumer"].wait_for("mapped")
        # Anywhere in the second between two keepalives and announces.
        time.sleep(1 + time.monotonic() % 1)
        at_ns = time.monotonic_ns()
        parts[victim].signal(number)
        return {role: (parts[role].wait_for(kind, at_ns) - at_ns) / 1e6 for role, kind in heard.items()}


def _say(kind: str, at_ns: int | None = None) -> None:
    print(json.dumps({"kind": kind, "at_ns": time.monotonic_ns() if at_ns is None else at_ns}), flush=True)


def _play(role: str, place: Path) -> None:
    where: dict[str, Any] = {"aeron_dir": place / "aeron", "shm_base_dir": place, "media_driver": "external"}
    if role == "media_driver":
        with tp.MediaDriver(place / "aeron"):
            _say("up")
            sys.stdin.readline()
    elif role == "driver":
        with ExitStack() as stack:
            signal.signal(signal.SIGTERM, lambda *_: sys.exit())
            stack.enter_context(tp.open("embedded", **where))
            _say("up")
            sys.stdin.readline()
    else:
        with tp.open("driver", **where) as ctx, ExitStack() as stack:
            if role == "producer":
                stack.enter_context(ctx.producer(_STREAM, pools=["1MiB"], nslots=8))
            else:
                stack.enter_context(ctx.consumer(_STREAM))
            _say("up")
            for event in ctx.events():
                _say(event.kind, event.at_ns)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--role", help=argparse.SUPPRESS)
    options.add_argument("--place", type=Path, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.role:
        _play(given.role, given.place)
        return
    machine = ", ".join(f"{name} {value}" for name, value in describe().items())
    print(f"Milliseconds until it is known: median (least to most) of {given.rounds} rounds; {machine}")
    for case in CASES:
        rounds = [_round(case) for _ in range(given.rounds)]
        for role in rounds[0]:
            times = sorted(one[role] for one in rounds)
            print(
                f"{case:<28} {role:<10} {statistics.median(times):8.0f} ({times[0]:.0f} to {times[-1]:.0f})"
            )


if __name__ == "__main__":
    main()
