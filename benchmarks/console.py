"""The console in a browser: its processor time, its effect on the watched stream, and the age of its frames.

A hundred streams, two of them with 1 MiB frames at 25 Hz and a reader each. The console watches one of these.
The other one is its control: both have the same load of the machine, at the same time. Readers, console and
viewer are processes of their own, so that no interpreter waits for another. The viewer takes frames as a
browser does, without drawing them; where Chromium is installed, it draws them, too.
"""

from __future__ import annotations

import http.client
import json
import os
import select
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
    "capture to pixels p50 ms", "reader p99 µs: watched", "its control", "no console", "lost: watched",
    "its control",
]  # fmt: skip
NOTE = (
    "Console: processor time of `tensorpool console` with one viewer of a stream of 1 MiB frames at 25 Hz "
    "among 100 streams; the age of a frame when the viewer has received it, and when Chromium has drawn it; "
    "p99 and losses of another reader of that stream, beside those of a reader of a like stream that is not "
    "watched, at the same time; and p99 of both while there is no console."
)
_STREAMS, _HZ, _WATCHED, _CONTROL = 100, 25.0, 30_000, 30_001
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
        effect = statistics.median(run["watched_p99_us"] / run["control_p99_us"] for run in self.runs)
        pixels = [run["pixels_p50_ms"] for run in self.runs if "pixels_p50_ms" in run]
        drawn = statistics.median(pixels) / _MAX_AGE_MS if pixels else None
        return [
            Target("processor time of the console, 100 streams", "a core", 0.25, True, share),
            Target("capture to viewer, p50", "60 ms", 1.0, True, None if age is None else age / _MAX_AGE_MS),
            Target("capture to pixels in Chromium, p50", "60 ms", 1.0, True, drawn),
            Target("p99 of a watched stream", "a like one", 1.2, True, effect),
        ]

    def rows(self) -> list[list[str]]:
        """Rows of the table."""
        if not self.runs:
            return []
        values = [f"{self.median(key):.1f}" for key in ("hz", "age_p50_ms", "age_p99_ms")]
        pixels = [run["pixels_p50_ms"] for run in self.runs if "pixels_p50_ms" in run]
        values.append(f"{statistics.median(pixels):.1f}" if pixels else "-")
        keys = ("watched_p99_us", "control_p99_us", "without_p99_us", "watched_lost", "control_lost")
        values += [f"{self.median(key):.1f}" for key in keys]
        return [[str(_STREAMS), f"{100 * (self.median('share') or 0):.1f}", *values]]


def measure(settings: Settings) -> ConsoleCosts:
    """Measures all runs."""
    costs = ConsoleCosts()
    deadline = time.monotonic() + settings.patience_s
    for number in range(settings.runs):
        show_progress(f"run {number + 1} of {settings.runs}: console")
        try:
            costs.runs.append(measure_undisturbed(lambda path: _run(path, settings.is_quick), deadline))
        except (tp.TensorPoolError, OSError, ValueError) as error:
            costs.failures.append(f"console: {error}")
    show_progress("")
    return costs


def _run(directory: str, is_quick: bool) -> Run:
    seconds, rounds = (2.0, 1) if is_quick else (10.0, 3)
    with ExitStack() as stack:
        ctx = stack.enter_context(tp.open("embedded", aeron_dir=f"{directory}/aeron", shm_base_dir=directory))
        large = [
            stack.enter_context(ctx.producer(number, pools=["1MiB"], nslots=32))
            for number in (_WATCHED, _CONTROL)
        ]
        small = [
            stack.enter_context(ctx.producer(_CONTROL + number, pools=[4096], nslots=8))
            for number in range(1, _STREAMS - 1)
        ]
        watched, control = (stack.enter_context(_Reader(directory, each.stream_id)) for each in large)
        stack.enter_context(_publishing(large, small))
        latencies: dict[str, list[float]] = {"without": [], "watched": [], "control": []}
        lost = {"without": 0, "watched": 0, "control": 0}
        ages: list[float] = []
        shares: list[float] = []

        def read(names: tuple[str, str]) -> None:
            """Both readers read for a period."""
            for reader in (watched, control):
                reader.begin()
            time.sleep(seconds)
            for name, reader in zip(names, (watched, control), strict=True):
                period = reader.end()
                latencies[name] += period.latencies_us
                lost[name] += period.lost

        for _ in range(rounds):
            read(("without", "without"))
            with _console(directory) as (url, pid), _viewer(url) as received:
                deadline = time.monotonic() + _WAIT_S
                while len(received) < _HZ and time.monotonic() < deadline:
                    time.sleep(0.1)
                count, begin, cpu_s = len(received), time.monotonic(), _cpu_s(pid)
                read(("watched", "control"))
                elapsed = time.monotonic() - begin
                shares.append((_cpu_s(pid) - cpu_s) / elapsed)
                ages += received[count:]
                hz = (len(received) - count) / elapsed
        drawn = _drawn_ages(directory, seconds)
    run: Run = {"share": statistics.median(shares), "hz": hz}
    for name, values in latencies.items():
        run[f"{name}_p99_us"] = float(np.percentile(values, 99))
        run[f"{name}_lost"] = lost[name]
    run["age_p50_ms"], run["age_p99_ms"] = (float(v) for v in np.percentile(ages or [np.nan], (50, 99)))
    if drawn:
        run["pixels_p50_ms"] = statistics.median(drawn)
    return run


@dataclass(frozen=True, slots=True)
class _Period:
    """What a reader has measured."""

    latencies_us: list[float]
    lost: int


class _Reader:
    """A consumer in a process of its own that measures the latency of each frame."""

    def __init__(self, directory: str, stream_id: int) -> None:
        program = "import sys; from benchmarks.console import read; read(sys.argv[1], int(sys.argv[2]))"
        self._process = subprocess.Popen(
            [sys.executable, "-c", program, f"{directory}/aeron", str(stream_id)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "TENSORPOOL_SHM__BASE_DIR": directory},
        )  # fmt: skip

    def _ask(self, command: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline()

    def begin(self) -> None:
        """Begins a period, once frames arrive."""
        self._ask("begin")

    def end(self) -> _Period:
        """Ends the period. Raises ValueError if the process has ended."""
        return _Period(**json.loads(self._ask("end")))

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate(timeout=_WAIT_S)


def read(aeron_dir: str, stream_id: int) -> None:
    """Reads a stream, and answers `begin` and `end` of a period; runs in a process of its own."""
    with tp.open(aeron_dir=aeron_dir, media_driver="external") as ctx, ctx.consumer(stream_id) as consumer:
        latencies_us: list[float] = []
        before = 0
        while True:
            frame = consumer.receive(_WAIT_S)
            now_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
            latencies_us.append((now_ns - frame.timestamp_ns) / 1e3)
            if not select.select([sys.stdin], [], [], 0)[0]:
                continue
            lost = sum(consumer.ledger().dropped.values())
            if sys.stdin.readline() == "end\n":
                print(json.dumps({"latencies_us": latencies_us, "lost": lost - before}), flush=True)
            else:
                print(flush=True)
            # The frame that was captured while this one answers is not measured.
            consumer.receive(_WAIT_S)
            latencies_us, before = [], lost


def _drawn_ages(directory: str, seconds: float) -> list[float]:
    """The ages of frames when Chromium has drawn them, in milliseconds; none where it is not installed."""
    # The browser of the tests: it is no part of the package.
    from tests.browser import browser, missing

    if missing() is not None:
        return []
    ages: list[float] = []
    with _console(directory) as (url, _), browser() as chromium:
        chromium.resize(1200, 800)
        chromium.visit(url)
        chromium.run(f"location.hash = '#/frame/{_WATCHED}'")
        deadline = time.monotonic() + _WAIT_S
        while not chromium.run("return tensorpool.view?.ages?.length >= 25") and time.monotonic() < deadline:
            time.sleep(0.1)
        # The page keeps the last 60 of them.
        for _ in range(max(1, round(seconds / 2))):
            time.sleep(2.0)
            ages += chromium.run("return [...(tensorpool.view?.ages ?? [])].slice(-50)")
    return ages


def _publishing(large: list[tp.Producer], small: list[tp.Producer]) -> AbstractContextManager[None]:
    """Offers 1 MiB frames at 25 Hz, each stream first in turn, and small frames of all others as often."""
    image, line = np.zeros((1024, 1024), np.uint8), np.zeros(16, np.float32)

    def offer() -> None:
        for producer in large:
            producer.offer(image)
        large.reverse()
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
