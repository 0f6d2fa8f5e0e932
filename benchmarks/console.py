"""The console in a browser: its processor time, its effect on the watched stream, and the age of its frames.

A hundred streams, one of 1 MiB frames at 25 Hz with a reader of its own; the console is a process, and a
viewer takes frames as a browser does, without drawing them. Periods without and with the console alternate.
"""

from __future__ import annotations

import http.client
import json
import os
import statistics
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import tensorpool as tp

from .dataplane import Run, Settings, measure_undisturbed, show_progress
from .pacing import repeating
from .targets import Target

HEAD = [
    "streams", "console % of a core", "frames a second", "capture to viewer p50 ms", "p99 ms",
    "reader p99 µs without", "with", "reader lost without", "with",
]  # fmt: skip
NOTE = (
    "Console: processor time of `tensorpool console` with one viewer of a stream of 1 MiB frames at 25 Hz "
    "among 100 streams; the age of a frame when the viewer has received it (a browser draws it within its "
    "next frame); and p99 and losses of another reader of that stream in periods without and with the "
    "console. The viewer is a process of its own."
)
_STREAMS, _HZ, _WATCHED = 100, 25.0, 30_000
_MAX_AGE_MS = 60.0
_WAIT_S = 60.0


@dataclass(slots=True)
class ConsoleCosts:
    """All runs."""

    runs: list[Run] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def median(self, key: str) -> float | None:
        """Median of a value over the runs."""
        return statistics.median(run[key] for run in self.runs) if self.runs else None

    def others(self) -> float | None:
        """Largest load by other processes during a measurement, in cores."""
        return max((run["others_cores"] for run in self.runs), default=None)

    def targets(self) -> list[Target]:
        """A quarter of a core, frames within 60 ms, and no effect on another reader."""
        if not self.runs:
            return []
        share, age = self.median("share"), self.median("age_p50_ms")
        effect = statistics.median(run["with_p99_us"] / run["without_p99_us"] for run in self.runs)
        return [
            Target("processor time of the console, 100 streams", "a core", 0.25, True, share),
            Target("capture to viewer, p50", "60 ms", 1.0, True, None if age is None else age / _MAX_AGE_MS),
            Target("p99 of another reader with the console", "without", 1.2, True, effect),
        ]

    def rows(self) -> list[list[str]]:
        """Rows of the table."""
        if not self.runs:
            return []
        keys = (
            "hz",
            "age_p50_ms",
            "age_p99_ms",
            "without_p99_us",
            "with_p99_us",
            "without_lost",
            "with_lost",
        )
        values = [f"{self.median(key):.1f}" for key in keys]
        return [[str(_STREAMS), f"{100 * (self.median('share') or 0):.1f}", *values]]


def measure(settings: Settings) -> ConsoleCosts:
    """Measures all runs."""
    costs = ConsoleCosts()
    deadline = time.monotonic() + settings.patience_s
    for number in range(settings.runs):
        show_progress(f"run {number + 1} of {settings.runs}: console")
        try:
            costs.runs.append(measure_undisturbed(lambda path: _run(path, settings.is_quick), deadline))
        except (tp.TensorPoolError, OSError) as error:
            costs.failures.append(f"console: {error}")
    show_progress("")
    return costs


def _run(directory: str, is_quick: bool) -> Run:
    seconds, rounds = (2.0, 1) if is_quick else (10.0, 3)
    with ExitStack() as stack:
        ctx = stack.enter_context(tp.open("embedded", aeron_dir=f"{directory}/aeron", shm_base_dir=directory))
        watched = stack.enter_context(ctx.producer(_WATCHED, pools=["1MiB"], nslots=32, name="watched"))
        small = [
            stack.enter_context(ctx.producer(_WATCHED + number, pools=[4096], nslots=8))
            for number in range(1, _STREAMS)
        ]
        reader = stack.enter_context(ctx.consumer(_WATCHED))
        stack.enter_context(_publishing(watched, small))
        latencies: dict[str, list[float]] = {"without": [], "with": []}
        lost = {"without": 0, "with": 0}
        ages: list[float] = []
        shares: list[float] = []

        def read(period: str) -> None:
            """Reads for a period, as any consumer does."""
            before = sum(reader.ledger().dropped.values())
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                frame = reader.receive(_WAIT_S)
                latencies[period].append(
                    (time.clock_gettime_ns(time.CLOCK_MONOTONIC) - frame.timestamp_ns) / 1e3
                )
            lost[period] += sum(reader.ledger().dropped.values()) - before

        for _ in range(rounds):
            settled = time.monotonic() + 1.0
            while time.monotonic() < settled:
                reader.receive(_WAIT_S)
            read("without")
            with _console(directory) as (url, pid), _viewer(url) as received:
                deadline = time.monotonic() + _WAIT_S
                # The reader reads on: frames that waited for it meanwhile would be no latency of the stream.
                while len(received) < _HZ and time.monotonic() < deadline:
                    reader.receive(_WAIT_S)
                count, begin, cpu_s = len(received), time.monotonic(), _cpu_s(pid)
                read("with")
                elapsed = time.monotonic() - begin
                shares.append((_cpu_s(pid) - cpu_s) / elapsed)
                ages += received[count:]
                hz = (len(received) - count) / elapsed
    run: Run = {"share": statistics.median(shares), "hz": hz}
    for period, values in latencies.items():
        run[f"{period}_p99_us"] = float(np.percentile(values, 99))
        run[f"{period}_lost"] = lost[period]
    run["age_p50_ms"], run["age_p99_ms"] = (float(v) for v in np.percentile(ages or [np.nan], (50, 99)))
    return run


def _publishing(watched: tp.Producer, small: list[tp.Producer]) -> AbstractContextManager[None]:
    """Offers 1 MiB frames at 25 Hz, and a small frame of every other stream as often."""
    image, line = np.zeros((1024, 1024), np.uint8), np.zeros(16, np.float32)

    def offer() -> None:
        watched.offer(image)
        for producer in small:
            producer.offer(line)

    return repeating(offer, _HZ)


@contextmanager
def _console(directory: str) -> Iterator[tuple[str, int]]:
    """Runs `tensorpool console`; yields its address and its process id."""
    command = [sys.executable, "-m", "tensorpool", "console", "--port", "0", "--json", "--read-only"]
    command += ["--aeron-dir", f"{directory}/aeron", "--max-hz", str(_HZ)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "TENSORPOOL_SHM__BASE_DIR": directory},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["url"], process.pid
    finally:
        process.terminate()
        process.communicate(timeout=_WAIT_S)


@contextmanager
def _viewer(url: str) -> Iterator[list[float]]:
    """Runs a viewer as a process; yields the ages of the frames that it has received, in milliseconds."""
    program = "import sys; from benchmarks.console import view; view(sys.argv[1])"
    process = subprocess.Popen([sys.executable, "-c", program, url], stdout=subprocess.PIPE, text=True)
    ages: list[float] = []

    def collect() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            ages.append(float(line))

    thread = threading.Thread(target=collect)
    thread.start()
    try:
        yield ages
    finally:
        process.kill()
        process.wait(_WAIT_S)
        thread.join()
        if process.stdout is not None:
            process.stdout.close()


def view(url: str) -> None:
    """Takes frames as a browser does, and prints the age of each; runs in a process of its own."""
    from websockets.exceptions import ConnectionClosed
    from websockets.sync.client import connect

    host, _, path = url.removeprefix("http://").partition("/")
    connection = http.client.HTTPConnection(host, timeout=_WAIT_S)
    connection.request("GET", f"/{path}")
    cookie = (connection.getresponse().getheader("set-cookie") or "").partition(";")[0]
    connection.close()
    headers = {"Cookie": cookie, "Origin": f"http://{host}"}
    with (
        suppress(ConnectionClosed),
        connect(f"ws://{host}/ws", additional_headers=headers, compression=None, max_size=None) as socket,
    ):
        socket.send(json.dumps({"type": "watch", "watch": 1, "stream": _WATCHED, "hz": _HZ, "view": {}}))
        for message in socket:
            if isinstance(message, str):
                continue
            (size,) = struct.unpack_from("<I", message)
            header = json.loads(message[4 : 4 + size])
            if "age_ms" in header:
                print(header["age_ms"] + time.time() * 1e3 - header["sent_ms"], flush=True)
            socket.send('{"type":"drawn","watch":1}')


def _cpu_s(pid: int) -> float:
    """Processor time of a process, in seconds."""
    times = Path("/proc", str(pid), "stat").read_text("ascii").rpartition(")")[2].split()
    return (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK")
