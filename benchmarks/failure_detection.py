"""Time until clients detect the end of another process: each process of a system is killed in turn.

    python -m benchmarks.failure_detection [--rounds 5]

Default settings, real processes of one user. docs/explanation shows a table of these figures.
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
_TIMEOUT_S = 60.0

CASES = {
    "the producer is killed": ("producer", signal.SIGKILL, {"consumer": "unmapped"}),
    "the driver is killed": (
        "driver", signal.SIGKILL, {"consumer": "driver_lost", "producer": "driver_lost"},
    ),
    "the driver is stopped": (
        "driver", signal.SIGTERM, {"consumer": "driver_shutdown", "producer": "driver_shutdown"},
    ),
    "the media driver is killed": (
        "media_driver", signal.SIGKILL, {"consumer": "media_driver_lost", "producer": "media_driver_lost"},
    ),
}  # fmt: skip


class RoleProcess:
    """A process of the system and its events: JSON lines, each with a kind and a time."""

    def __init__(self, role: str, directory: Path) -> None:
        command = [
            sys.executable,
            "-m",
            "benchmarks.failure_detection",
            "--role",
            role,
            "--directory",
            str(directory),
        ]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._events: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self._events.append(json.loads(line))
                self._changed.notify_all()

    def wait_for(self, kind: str, after_ns: int = 0) -> int:
        """Waits for an event of this kind and returns its time. Raises TimeoutError."""

        def event_time() -> int | None:
            return next(
                (
                    event["at_ns"]
                    for event in self._events
                    if event["kind"] == kind and event["at_ns"] >= after_ns
                ),
                None,
            )

        with self._changed:
            at_ns: int | None = self._changed.wait_for(event_time, _TIMEOUT_S)
        if at_ns is None:
            raise TimeoutError(f"no event {kind} within {_TIMEOUT_S:.0f} s")
        return at_ns

    def signal(self, number: int) -> None:
        """Sends a signal to the process."""
        self._process.send_signal(number)

    def end(self) -> None:
        """Kills and reaps the process."""
        self._process.kill()
        self._process.communicate()
        self._reader.join()


def _run_round(case: str) -> dict[str, float]:
    """Milliseconds until each client reported the end of the process."""
    ended_role, number, expected = CASES[case]
    with ExitStack() as stack:
        directory = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="tensorpool-bench-", dir="/dev/shm"))
        )
        os.environ["XDG_STATE_HOME"] = str(directory / "state")
        processes: dict[str, RoleProcess] = {}
        for role in ("media_driver", "driver", "producer", "consumer"):
            processes[role] = RoleProcess(role, directory)
            stack.callback(processes[role].end)
            processes[role].wait_for("up")
        processes["consumer"].wait_for("mapped")
        # At a random moment between two keepalives and announces.
        time.sleep(1 + time.monotonic() % 1)
        at_ns = time.monotonic_ns()
        processes[ended_role].signal(number)
        return {
            role: (processes[role].wait_for(kind, at_ns) - at_ns) / 1e6 for role, kind in expected.items()
        }


def _write_event(kind: str, at_ns: int | None = None) -> None:
    print(json.dumps({"kind": kind, "at_ns": time.monotonic_ns() if at_ns is None else at_ns}), flush=True)


def _run_role(role: str, directory: Path) -> None:
    options: dict[str, Any] = {
        "aeron_dir": directory / "aeron",
        "shm_base_dir": directory,
        "media_driver": "external",
    }
    if role == "media_driver":
        with tp.MediaDriver(directory / "aeron"):
            _write_event("up")
            sys.stdin.readline()
    elif role == "driver":
        with ExitStack() as stack:
            signal.signal(signal.SIGTERM, lambda *_: sys.exit())
            stack.enter_context(tp.open("embedded", **options))
            _write_event("up")
            sys.stdin.readline()
    else:
        with tp.open("driver", **options) as ctx, ExitStack() as stack:
            if role == "producer":
                stack.enter_context(ctx.producer(_STREAM, pools=["1MiB"], nslots=8))
            else:
                stack.enter_context(ctx.consumer(_STREAM))
            _write_event("up")
            for event in ctx.events():
                _write_event(event.kind, event.at_ns)


def main() -> None:
    """Measures all cases and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--role", help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role:
        _run_role(arguments.role, arguments.directory)
        return
    machine = ", ".join(f"{name} {value}" for name, value in describe().items())
    print(
        f"Milliseconds until the event: median (minimum to maximum) of {arguments.rounds} rounds; {machine}"
    )
    for case in CASES:
        rounds = [_run_round(case) for _ in range(arguments.rounds)]
        for role in rounds[0]:
            times = sorted(delays_ms[role] for delays_ms in rounds)
            print(
                f"{case:<28} {role:<10} {statistics.median(times):8.0f} ({times[0]:.0f} to {times[-1]:.0f})"
            )


if __name__ == "__main__":
    main()
