"""Cost of a bridge compared with a raw Aeron UDP publication of the same bytes, and by number of mappings.

Both use loopback and the same two media drivers. One process runs both ends. Frames are offered no faster
than they are sent, so none is overwritten. All waits yield: on a machine with few cores, spinning would delay
the media drivers.
"""

from __future__ import annotations

import logging
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import tensorpool as tp
from tensorpool import _native
from tensorpool.bridge import BridgeAgent, BridgeSettings
from tensorpool.bridge.seal import create_key_file
from tensorpool.runtime.config import Config
from tensorpool.runtime.runner import Runner

from .dataplane import Run, Settings, measure_undisturbed, show_progress
from .targets import Target

FRAME_BYTES, SMALL_BYTES = 640 << 10, 64 << 10
MTUS = {"jumbo MTU": 8192, "default MTU": 1408}
# What protection costs, beside the raw bytes: the checksum is on by default.
PROTECTIONS: dict[str, dict[str, Any]] = {
    "no checksum": {"integrity": False},
    "sealed": {"key_file": "bridge.key"},
}
MAPPINGS, QUICK_MAPPINGS = (1, 10, 100), (1, 3)
HEAD = ["bridge", "raw Aeron UDP", "bridge ", "ratio"]
IDLE = "yield"
NSLOTS = 16
_TIMEOUT_S = 60.0
MAX_GROWTH = 1.5
SLICES = 3


@dataclass(slots=True)
class BridgeRuns:
    """All runs, by measurement."""

    runs: dict[str, list[Run]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def median(self, name: str, key: str) -> float | None:
        """Median of a value over the runs."""
        known = [value for run in self.runs.get(name, ()) if (value := run.get(key)) is not None]
        return statistics.median(known) if known else None

    def ratio(self, name: str) -> float | None:
        """Median of the bridge relative to raw Aeron UDP."""
        ratios = [run["bridge"] / run["raw"] for run in self.runs.get(name, ()) if run.get("raw")]
        return statistics.median(ratios) if ratios else None

    def others(self) -> float | None:
        """Largest load by other processes during a measurement, in cores."""
        known = [cores for runs in self.runs.values() for run in runs if (cores := run.get("others_cores"))]
        return max(known, default=None)

    def targets(self) -> list[Target]:
        """Bounds on goodput, latency and growth."""
        raw = "raw Aeron UDP"
        targets = [
            Target(f"bridge goodput, 640 KiB, {name}", raw, 0.8, False, self.ratio(f"goodput, {name}"))
            for name in MTUS
        ]
        targets.append(Target("bridge p50 latency, 64 KiB", raw, 1.3, True, self.ratio("p50 latency")))
        costs = [self.median(name, "bridge") for name in self.runs if name.endswith("mappings")]
        if len(costs) > 1 and costs[0] and costs[-1]:
            growth = costs[-1] / costs[0]
            targets.append(
                Target("bridge, cost of a frame, most mappings", "one mapping", MAX_GROWTH, True, growth)
            )
        return targets

    def rows(self) -> list[list[str]]:
        """Rows of the table."""
        rows = []
        for name in self.runs:
            figures = [self.median(name, "raw"), self.median(name, "bridge"), self.ratio(name)]
            rows.append([name, *("-" if figure is None else f"{figure:,.2f}" for figure in figures)])
        return rows

    @staticmethod
    def note() -> str:
        """How the figures were measured."""
        return (
            "Bridge: both ends in one process, each with its media driver for UDP in another, over loopback; "
            "medians of "
            f"{SLICES} short pairs for each run; goodput in MiB/s, latency in µs from the offer until the "
            "frame is received at the other end; with many mappings µs per frame of 64 KiB, offered to each "
            "in turn, compared with a raw publication and as many idle ones."
        )


def measure(settings: Settings) -> BridgeRuns:
    """Runs all measurements."""
    measured = BridgeRuns()
    # The producers start after the bridge, which would log a warning for each.
    logging.getLogger("tensorpool.bridge").setLevel(logging.ERROR)
    seconds = 0.3 if settings.is_quick else 1.0
    deadline = time.monotonic() + settings.patience_s
    cases: dict[str, Callable[[str], Run]] = {
        f"goodput, {name}": partial(_measure_goodput, mtu, seconds, {}) for name, mtu in MTUS.items()
    }
    for name, mtu in MTUS.items():
        for protection, options in PROTECTIONS.items():
            cases[f"goodput, {name}, {protection}"] = partial(_measure_goodput, mtu, seconds, options)
    cases["p50 latency"] = partial(_measure_latency, 50 if settings.is_quick else 700)
    for count in QUICK_MAPPINGS if settings.is_quick else MAPPINGS:
        cases[f"{count} mappings"] = partial(_measure_mappings, count, seconds)
    # Many short pairs: raw and bridge of a pair meet the same load of the machine, and the median is of many.
    runs = 1 if settings.is_quick else SLICES * settings.runs
    for number in range(runs):
        for name, case in cases.items():
            show_progress(f"bridge: {name}, pair {number + 1} of {runs}")
            try:
                run = measure_undisturbed(case, deadline)
            except (AssertionError, tp.errors.TensorPoolError) as error:
                measured.failures.append(f"bridge, {name}: {error}")
                continue
            measured.runs.setdefault(name, []).append(run)
    return measured


@dataclass
class BridgeEnds:
    """Two contexts, each with its own media driver."""

    here: tp.Context
    there: tp.Context
    stack: ExitStack

    def bridge(
        self, channel: str, control: str, streams: int, **options: Any
    ) -> tuple[BridgeAgent, BridgeAgent]:
        """Runs a bridge; returns the sender's agent and the receiver's."""
        agents = []
        for ctx, direction in ((self.there, "receive"), (self.here, "send")):
            table = {
                "instance_id": direction,
                "direction": direction,
                "payload_channel": channel,
                "control_channel": control,
                "forward_metadata": False,
                "idle": IDLE,
                **options,
                "mappings": [
                    {"source_stream_id": 10_000 + n, "dest_stream_id": 50_000 + n} for n in range(streams)
                ],
            }
            settings = Config.load(BridgeSettings, tables={"bridge": table}, environ={})[BridgeSettings]
            agent = BridgeAgent(ctx, settings)
            runner = Runner(agent)
            runner.start()
            self.stack.callback(runner.close)
            agents.append(agent)
        return agents[1], agents[0]


def _wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} within {_TIMEOUT_S:g} s"
        time.sleep(0.005)


def _channel(*parameters: str) -> str:
    """A UDP channel on a free port of the loopback device."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return "|".join((f"aeron:udp?endpoint=127.0.0.1:{probe.getsockname()[1]}", *parameters))


@contextmanager
def _ends(directory: str) -> Iterator[BridgeEnds]:
    with ExitStack() as stack:
        contexts = []
        for name in ("here", "there"):
            base = Path(directory) / name
            base.mkdir(mode=0o700)
            ctx = tp.open("embedded", aeron_dir=base / "aeron", shm_base_dir=base, namespace=f"bench-{name}")
            contexts.append(stack.enter_context(ctx))
        yield BridgeEnds(contexts[0], contexts[1], stack)


@contextmanager
def _in_background(work: Callable[[], None]) -> Iterator[None]:
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            work()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def _raw(ends: BridgeEnds, channel: str) -> Iterator[tuple[_native.RawPublication, _native.RawSubscription]]:
    """A raw publication and subscription: native loops on the caller's thread, messages as long as the MTU
    allows."""
    subscription = _native.RawSubscription(ends.there.connection.conductor, channel, 2000)
    publication = _native.RawPublication(ends.here.connection.conductor, channel, 2000)
    _wait_for(
        lambda: publication.is_connected and subscription.is_connected, "a raw publication did not connect"
    )
    yield publication, subscription
    publication.close()
    subscription.close()


def _measure_rate(count: Callable[[], int], seconds: float) -> float:
    """Increments of a counter per second, after a warm-up."""
    time.sleep(seconds / 4)
    first, began = count(), time.perf_counter()
    time.sleep(seconds)
    return (count() - first) / (time.perf_counter() - began)


def _measure_goodput(mtu: int, seconds: float, options: dict[str, Any], directory: str) -> Run:
    frame = np.random.default_rng(1).integers(0, 256, FRAME_BYTES, dtype=np.uint8)
    with _ends(directory) as ends:
        with _raw(ends, _channel(f"mtu={mtu}")) as (publication, subscription):
            # Both variants send frames from a ring.
            ring = np.tile(frame, NSLOTS).tobytes()

            def offer() -> None:
                publication.send(ring, 1, 0.1)

            def drain() -> None:
                subscription.receive(subscription.received + len(ring), 0.1)

            with _in_background(offer), _in_background(drain):
                raw = _measure_rate(lambda: subscription.received, seconds)
        if "key_file" in options:
            options = {"key_file": str(create_key_file(Path(directory) / options["key_file"]).path)}
        agents = ends.bridge(_channel(f"mtu={mtu}"), _channel(), 1, **options)
        with _published(ends, agents, frame) as bytes_of:
            ours = _measure_rate(bytes_of, seconds)
    return {"raw": raw / (1 << 20), "bridge": ours / (1 << 20)}


def discard(_: object) -> None:
    """Ignores a value whose effect is counted elsewhere."""


@contextmanager
def _published(
    ends: BridgeEnds, agents: tuple[BridgeAgent, BridgeAgent], frame: npt.NDArray[Any], streams: int = 1
) -> Iterator[Callable[[], int]]:
    """Runs producers that publish as fast as the bridge sends; yields a function for the received bytes.

    Slots are not filled: filling is the work of the camera in both variants.
    """
    sender, receiver = agents
    stride, nslots = 1 << (frame.nbytes - 1).bit_length(), NSLOTS
    producers = [
        ends.stack.enter_context(ends.here.producer(10_000 + n, pools=[stride], nslots=nslots))
        for n in range(streams)
    ]

    def is_up() -> bool:
        sent, received = sender.sender_rows(), receiver.receiver_rows()
        return (
            all(
                row["connected"] and row["epoch"] == str(p.epoch)
                for row, p in zip(sent, producers, strict=True)
            )
            and all(row["destination"] == "attached" for row in received)
            and all(producer.is_connected for producer in producers)
        )

    _wait_for(is_up, "the bridge did not connect")
    turn = 0

    def offer() -> None:
        nonlocal turn
        producer = producers[turn % streams]
        turn += 1
        # The frames wait in their slots. Polling more often would take the cores from the bridge.
        while producer.next_seq - _processed_frames(sender, producer.stream_id) >= nslots // 2:
            time.sleep(1e-3)
        with producer.claim(frame.shape, frame.dtype):
            pass

    with _in_background(offer):
        yield lambda: sum(row["bytes"] for row in receiver.receiver_rows())


def _processed_frames(sender: BridgeAgent, stream_id: int) -> int:
    counters = sender.sender_counters(stream_id)
    dropped = counters.dropped
    return counters.sent + dropped["overwritten"] + dropped["unannounced"] + dropped["not_connected"]


def _measure_latency(count: int, directory: str) -> Run:
    frame = np.zeros(SMALL_BYTES, np.uint8)
    with _ends(directory) as ends:
        with _raw(ends, _channel()) as (publication, subscription):
            message = frame.tobytes()

            def raw_once() -> None:
                assert publication.send(message, 1, _TIMEOUT_S)
                assert subscription.receive(subscription.received + SMALL_BYTES, _TIMEOUT_S)

            raw = _p50(raw_once, count)
        agents = ends.bridge(_channel(), _channel(), 1)
        producer = ends.stack.enter_context(ends.here.producer(10_000, pools=[SMALL_BYTES], nslots=8))
        consumer = ends.stack.enter_context(ends.there.consumer(50_000, idle="yield"))
        sender, receiver = agents
        _wait_for(
            lambda: (
                producer.is_connected
                and sender.sender_rows()[0]["connected"]
                and sender.sender_rows()[0]["epoch"] == str(producer.epoch)
                and receiver.receiver_rows()[0]["destination"] == "attached"
                and str(consumer.epoch) == receiver.receiver_rows()[0]["epoch"]
            ),
            "the bridge did not connect",
        )

        def once() -> None:
            producer.offer(frame)
            discard(consumer.receive(_TIMEOUT_S))

        ours = _p50(once, count)
    return {"raw": raw, "bridge": ours}


def _p50(once: Callable[[], None], count: int) -> float:
    times = []
    for _ in range(count):
        began = time.perf_counter_ns()
        once()
        times.append(time.perf_counter_ns() - began)
    return statistics.median(times[count // 10 :]) / 1e3


def _measure_mappings(count: int, seconds: float, directory: str) -> Run:
    frame = np.zeros(SMALL_BYTES, np.uint8)
    with _ends(directory) as ends:
        raw = _measure_raw_publications(ends, count, seconds)
        agents = ends.bridge(_channel(), _channel(), count)
        with _published(ends, agents, frame, count) as bytes_of:
            ours = _measure_rate(bytes_of, seconds) / SMALL_BYTES
    return {"raw": 1e6 / raw if raw else None, "bridge": 1e6 / ours if ours else None}


def _are_connected(publications: list[_native.RawPublication]) -> bool:
    return all(publication.is_connected for publication in publications)


def _measure_raw_publications(ends: BridgeEnds, count: int, seconds: float) -> float:
    """Frames per second of a raw publication while the media drivers have as many idle publications as there
    are streams: a media driver polls each of them in each duty cycle."""
    channel, message = _channel(), bytes(SMALL_BYTES)
    with ExitStack() as stack:
        for conductor in (ends.here.connection.conductor, ends.there.connection.conductor):
            subscription = _native.RawSubscription(conductor, "aeron:ipc", 2001)
            stack.callback(subscription.close)
            idle = [_native.RawPublication(conductor, "aeron:ipc", 2001) for _ in range(count)]
            for publication in idle:
                stack.callback(publication.close)
            _wait_for(partial(_are_connected, idle), "idle publications did not connect")
        publication, subscription = stack.enter_context(_raw(ends, channel))

        def offer() -> None:
            publication.send(message, 1, 0.1)

        def drain() -> None:
            subscription.receive(subscription.received + (1 << 20), 0.1)

        with _in_background(offer), _in_background(drain):
            return _measure_rate(lambda: subscription.received, seconds) / SMALL_BYTES
