"""The console in a browser: its processor time, its effect on the watched stream, and the age of its frames.

A hundred streams, two of them with 1 MiB frames at 25 Hz and a reader each. The console watches one of these.
The other one is its control: both have the same load of the machine, at the same time. Readers, console and
viewer are processes of their own, so that no interpreter waits for another. The viewer takes frames as a
browser does, without drawing them; where Chromium is installed, it draws them, too.

The effect is a ratio of two percentiles that other programs disturb far more than the console does. So the
viewer looks, and then console and viewer are paused, in short periods that alternate in random order: a
disturbance that lasts meets both alike. The interval around the ratio comes from drawing such pairs again.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import select
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

import tensorpool as tp
from tensorpool.console.frames import unpack_message

from .dataplane import Run, Settings, measure_undisturbed, show_progress
from .pacing import repeating
from .targets import Target

HEAD = [
    "streams", "console % of a core", "frames a second", "capture to viewer p50 ms", "p99 ms",
    "capture to pixels p50 ms", "reader p99 µs: watched", "not watched", "ratio", "95 % from", "to",
    "ratio to its control", "95 % from", "to", "lost: watched", "not watched",
    "1,000 streams: first view s", "between updates s", "console % of a core",
]  # fmt: skip
NOTE = (
    "Console: processor time of `tensorpool console` with one viewer of a stream of 1 MiB frames at 25 Hz "
    "among 100 streams; the age of a frame when the viewer has received it, and when Chromium has drawn it; "
    "p99 and losses of another reader of that stream while the viewer looks and while console and viewer are "
    "paused, in periods of a second that alternate; the median over these pairs of the ratio of their p99, "
    "with its 95 % interval; the same as a ratio to that of a reader of a like stream without a viewer. The "
    "page of 1,000 streams with 4,000 consumers in Chromium: from the load to the whole view, and between "
    "two drawn updates."
)
_STREAMS, _HZ, _WATCHED, _CONTROL, _MANY = 100, 25.0, 30_000, 30_001, 1000
_MAX_AGE_MS = 60.0
_WAIT_S = 60.0
_DRAWS = 1000


@dataclass(slots=True)
class ConsoleCosts:
    """All runs."""

    runs: list[Run] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def median(self, key: str) -> float | None:
        """Median of a value over the runs."""
        return statistics.median(run[key] for run in self.runs) if self.runs else None

    def _optional(self, key: str) -> float | None:
        """Median of a value that needs Chromium."""
        values = [run[key] for run in self.runs if key in run]
        return statistics.median(values) if values else None

    def others(self) -> float | None:
        """Largest load by other processes during a measurement, in cores."""
        return max((run["others_cores"] for run in self.runs), default=None)

    def targets(self) -> list[Target]:
        """A quarter of a core, frames within 60 ms, and no effect on another reader."""
        if not self.runs:
            return []
        share, age = self.median("share"), self.median("age_p50_ms")
        effect, net = self.median("effect_p99_low"), self.median("net_p99_low")
        pixels = self._optional("pixels_p50_ms")
        drawn = None if pixels is None else pixels / _MAX_AGE_MS
        first, gap = self._optional("first_view_s"), self._optional("update_gap_s")
        return [
            Target("processor time of the console, 100 streams", "a core", 0.25, True, share),
            Target("capture to viewer, p50", "60 ms", 1.0, True, None if age is None else age / _MAX_AGE_MS),
            Target("capture to pixels in Chromium, p50", "60 ms", 1.0, True, drawn),
            Target("p99 of a watched stream, lower end of 95 %", "without the console", 1.0, True, effect),
            Target("its effect, lower end of 95 %", "that on a like stream", 1.0, True, net),
            Target("first view of 1,000 streams", "s", 2.0, True, first),
            Target("time between updates of 1,000 streams", "s", 1.2, True, gap),
        ]

    def rows(self) -> list[list[str]]:
        """Rows of the table."""
        if not self.runs:
            return []
        values = [f"{self.median(key):.1f}" for key in ("hz", "age_p50_ms", "age_p99_ms")]
        pixels = self._optional("pixels_p50_ms")
        values.append("-" if pixels is None else f"{pixels:.1f}")
        values += [f"{self.median(key):.0f}" for key in ("watched_p99_us", "paused_p99_us")]
        for key in ("effect_p99", "net_p99"):
            values += [f"{self.median(key + end):.2f}" for end in ("", "_low", "_high")]
        values += [f"{self.median(key):.0f}" for key in ("watched_lost", "paused_lost")]
        large = [self._optional(key) for key in ("first_view_s", "update_gap_s")]
        values += ["-" if value is None else f"{value:.2f}" for value in large]
        share = self._optional("large_share")
        values.append("-" if share is None else f"{100 * share:.1f}")
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


# --- the effect on a stream


@dataclass(frozen=True, slots=True)
class Pair:
    """Latencies of a reader in two periods that follow each other: with the viewer, and without."""

    on: list[float]
    off: list[float]


@dataclass(frozen=True, slots=True)
class Effect:
    """A ratio of latencies with the viewer to those without, and its 95 % interval."""

    ratio: float
    low: float
    high: float

    def to_run(self, name: str) -> Run:
        """The values under their names in a run."""
        return {name: self.ratio, f"{name}_low": self.low, f"{name}_high": self.high}


def effect(pairs: Sequence[Pair], percentile: float, like: Sequence[Pair] | None = None) -> Effect:
    """The median over the pairs of the ratio of the percentile within each pair.

    It says what a period with the viewer usually costs, and one long disturbance by another program cannot
    move it. With the pairs of a like reader in the same periods the ratio is that to the reader's own ratio:
    what meets both readers, as the processor time of the console does, cancels.
    """
    ratios = _ratios(pairs, percentile) / (1.0 if like is None else _ratios(like, percentile))
    return _with_interval(len(pairs), lambda chosen: float(np.median(ratios[chosen])))


def _ratios(pairs: Sequence[Pair], percentile: float) -> npt.NDArray[np.float64]:
    on, off = (
        np.array([np.percentile(side, percentile) for side in sides])
        for sides in zip(*((p.on, p.off) for p in pairs), strict=True)
    )
    return np.asarray(on / off, np.float64)


def pooled_effect(pairs: Sequence[Pair], percentile: float) -> Effect:
    """The ratio of the percentile over all periods with the viewer to that over all without.

    It contains what happens rarely, of the console and of all other programs.
    """
    on, off = (
        [np.asarray(values) for values in side] for side in zip(*((p.on, p.off) for p in pairs), strict=True)
    )

    def ratio(chosen: Sequence[int]) -> float:
        above, below = (
            np.percentile(np.concatenate([side[i] for i in chosen]), percentile) for side in (on, off)
        )
        return float(above / below)

    return _with_interval(len(pairs), ratio)


def _with_interval(count: int, ratio: Callable[[Sequence[int]], float]) -> Effect:
    """The ratio over all pairs, with the bootstrap's interval over whole pairs.

    Latencies of one period depend on each other: a disturbance that lasts for a pair must not count as fifty
    independent ones.
    """
    generator = np.random.default_rng(1)
    drawn = [ratio(generator.integers(0, count, count).tolist()) for _ in range(_DRAWS)]
    low, high = (float(value) for value in np.percentile(drawn, (2.5, 97.5)))
    return Effect(ratio(range(count)), low, high)


def _run(directory: str, is_quick: bool) -> Run:
    seconds, pairs, period_s = (2.0, 3, 0.4) if is_quick else (8.0, 80, 1.0)
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
        readers = [stack.enter_context(_Reader(directory, each.stream_id)) for each in large]
        stack.enter_context(_publishing(large, small))
        with _console(directory) as (url, pid), _viewer(url) as viewer:
            viewer.look()
            count, begin, cpu_s = len(viewer.ages), time.monotonic(), _cpu_s(pid)
            time.sleep(seconds)
            elapsed = time.monotonic() - begin
            ages = viewer.ages[count:]
            run: Run = {"share": (_cpu_s(pid) - cpu_s) / elapsed, "hz": len(ages) / elapsed}
            run |= _measure_effect(readers, viewer, pid, pairs, period_s)
        drawn = _drawn_ages(directory, seconds)
    run["age_p50_ms"], run["age_p99_ms"] = (float(v) for v in np.percentile(ages or [np.nan], (50, 99)))
    if drawn:
        run["pixels_p50_ms"] = statistics.median(drawn)
    # The streams above have ended: this one has a media driver of its own.
    return run | _large_page(f"{directory}/large", seconds)


def _measure_effect(
    readers: Sequence[_Reader], viewer: _Viewer, pid: int, count: int, period_s: float
) -> Run:
    """Both readers, in pairs of periods: while the viewer looks, and while console and viewer are paused."""
    order = random.Random(1)
    measured: list[list[Pair]] = [[] for _ in readers]
    lost = {True: 0, False: 0}
    for number in range(count):
        show_progress(f"console: pair {number + 1} of {count}")
        periods: dict[bool, list[_Period]] = {}
        for is_on in order.sample((True, False), 2):
            if is_on:
                viewer.look()
            else:
                viewer.look_away()
                for process in (pid, viewer.pid):
                    os.kill(process, signal.SIGSTOP)
            try:
                for reader in readers:
                    reader.begin()
                time.sleep(period_s)
                periods[is_on] = [reader.end() for reader in readers]
            finally:
                for process in (pid, viewer.pid):
                    os.kill(process, signal.SIGCONT)
            lost[is_on] += periods[is_on][0].lost
        for pairs, on, off in zip(measured, periods[True], periods[False], strict=True):
            pairs.append(Pair(on.latencies_us, off.latencies_us))
    watched, control = measured
    run: Run = {"watched_lost": lost[True], "paused_lost": lost[False], "pairs": count}
    for name, percentile in (("p50", 50.0), ("p99", 99.0)):
        run[f"watched_{name}_us"] = float(np.percentile([v for pair in watched for v in pair.on], percentile))
        run[f"paused_{name}_us"] = float(np.percentile([v for pair in watched for v in pair.off], percentile))
        run |= effect(watched, percentile).to_run(f"effect_{name}")
        run |= effect(control, percentile).to_run(f"control_{name}")
        run |= effect(watched, percentile, control).to_run(f"net_{name}")
        run |= pooled_effect(watched, percentile).to_run(f"pooled_{name}")
    return run


# --- processes


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


_RECORD_VIEW = """
window.drawn = [];
const look = () => {
  const page = window.tensorpool;
  if (page && document.querySelectorAll(".node.stream").length === 48 && window.firstView === undefined) {
    window.firstView = performance.now();
    const note = () => drawn.push(performance.now());
    page.connection.addEventListener("update", () => requestAnimationFrame(note));
  }
  requestAnimationFrame(look);
};
requestAnimationFrame(look);
"""
"""Notes when the graph is complete, and when each later update has been drawn."""


def _large_page(directory: str, seconds: float) -> Run:
    """The page of a thousand streams with four consumers each: nothing where Chromium is not installed."""
    # The load and the browser of the tests: they are no part of the package.
    from tests.browser import browser, missing
    from tests.integration.supervisor.load import SyntheticSystem
    from tests.remote_process import RemoteProcess

    if missing() is not None:
        return {}
    Path(directory).mkdir()
    aeron_dir = f"{directory}/aeron"
    with tp.MediaDriver(aeron_dir), RemoteProcess(SyntheticSystem) as system:
        options = {"aeron_dir": aeron_dir, "shm_base_dir": directory}
        system.call("publish", options=options, streams=_MANY, consumers=4)
        with _console(directory) as (url, pid), browser() as chromium:
            chromium.resize(1440, 900)
            chromium.visit(url)
            counts = "const s = tensorpool.connection.document.system['']; return [s?.streams, s?.consumers]"
            deadline = time.monotonic() + _WAIT_S
            while chromium.run(counts) != [_MANY, 4 * _MANY]:
                if time.monotonic() > deadline:
                    raise ValueError("the page does not show all streams and consumers")
                time.sleep(0.2)
            chromium.devtools("Page.addScriptToEvaluateOnNewDocument", source=_RECORD_VIEW)
            chromium.visit(url.partition("?")[0])
            begin, cpu_s = time.monotonic(), _cpu_s(pid)
            time.sleep(max(seconds, 5.0))
            look, deadline = "return [window.firstView ?? null, drawn]", time.monotonic() + _WAIT_S
            # On a busy machine this takes longer, which is a figure and no failure.
            while len((found := chromium.run(look))[1]) < 3 and time.monotonic() < deadline:
                time.sleep(0.5)
            first_ms, drawn = found
            share = (_cpu_s(pid) - cpu_s) / (time.monotonic() - begin)
        system.call("close")
    if first_ms is None or len(drawn) < 3:
        raise ValueError("the page of a thousand streams was not drawn in time")
    gaps = np.diff(drawn) / 1e3
    return {
        "first_view_s": first_ms / 1e3,
        "update_gap_s": float(np.median(gaps)),
        "longest_gap_s": float(gaps.max()),
        "large_share": share,
    }


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


class _Viewer:
    """A viewer as a process; `ages` are those of the frames that it has received, in milliseconds."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.ages: list[float] = []
        self.pid = process.pid
        self._process = process

    def collect(self) -> None:
        """Reads the ages until the process ends."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.ages.append(float(line))

    def _order(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line)
        self._process.stdin.flush()

    def look(self) -> None:
        """Watches the stream; returns when frames arrive."""
        self._order("watch\n")
        count, deadline = len(self.ages), time.monotonic() + _WAIT_S
        while len(self.ages) < count + 3:
            if time.monotonic() > deadline:
                raise ValueError("the viewer receives no frames")
            time.sleep(0.02)

    def look_away(self) -> None:
        """Watches no more; returns when no more frames arrive."""
        self._order("unwatch\n")
        count = -1
        while count != len(self.ages):
            count = len(self.ages)
            time.sleep(5 / _HZ)


@contextmanager
def _viewer(url: str) -> Iterator[_Viewer]:
    """Runs a viewer as a process."""
    program = "import sys; from benchmarks.console import view; view(sys.argv[1])"
    process = subprocess.Popen(
        [sys.executable, "-c", program, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    viewer = _Viewer(process)
    thread = threading.Thread(target=viewer.collect)
    thread.start()
    try:
        yield viewer
    finally:
        process.kill()
        process.wait(_WAIT_S)
        thread.join()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def view(url: str) -> None:
    """Takes frames as a browser does, and prints the age of each; runs in a process of its own.

    A line of stdin is `watch` or `unwatch`.
    """
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

        def send_lines() -> None:
            for line in sys.stdin:
                socket.send(json.dumps({"type": line.strip(), "watch": 1, "stream": _WATCHED, "hz": _HZ}))

        threading.Thread(target=send_lines, daemon=True).start()
        for message in socket:
            if isinstance(message, str):
                continue
            header, _ = unpack_message(message)
            if "age_ms" in header:
                print(header["age_ms"] + time.time() * 1e3 - header["sent_ms"], flush=True)
            socket.send('{"type":"drawn","watch":1}')


def _cpu_s(pid: int) -> float:
    """Processor time of a process, in seconds."""
    times = Path("/proc", str(pid), "stat").read_text("ascii").rpartition(")")[2].split()
    return (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK")
