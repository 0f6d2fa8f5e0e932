"""What a bridge costs beside a raw Aeron UDP publication of the same bytes, on loopback, between the same two
media drivers; and whether a frame costs more as mappings grow.

One process holds both ends. Frames are offered no faster than they leave, so none is overwritten. Everybody
who waits yields: spinning would keep the media drivers from their work where cores are few.
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
from tensorpool.runtime.config import Config
from tensorpool.runtime.runner import Runner

from .dataplane import Run, Settings, progress, undisturbed
from .targets import Target

FRAME_BYTES, SMALL_BYTES = 640 << 10, 64 << 10
MTUS = {"jumbo MTU": 8192, "default MTU": 1408}
MAPPINGS, QUICK_MAPPINGS = (1, 10, 100), (1, 3)
HEAD = ["bridge", "raw Aeron UDP", "bridge ", "ratio"]
IDLE = "yield"
NSLOTS = 16
_UP_S = 60.0
FLAT = 1.5
SLICES = 3


@dataclass(slots=True)
class Bridged:
    """All runs, by what was measured."""

    runs: dict[str, list[Run]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def median(self, name: str, key: str) -> float | None:
        known = [value for run in self.runs.get(name, ()) if (value := run.get(key)) is not None]
        return statistics.median(known) if known else None

    def ratio(self, name: str) -> float | None:
        ratios = [run["bridge"] / run["raw"] for run in self.runs.get(name, ()) if run.get("raw")]
        return statistics.median(ratios) if ratios else None

    def others(self) -> float | None:
        known = [cores for runs in self.runs.values() for run in runs if (cores := run.get("others_cores"))]
        return max(known, default=None)

    def targets(self) -> list[Target]:
        raw = "raw Aeron UDP"
        found = [
            Target(f"bridge goodput, 640 KiB, {name}", raw, 0.8, False, self.ratio(f"goodput, {name}"))
            for name in MTUS
        ]
        found.append(Target("bridge p50 latency, 64 KiB", raw, 1.3, True, self.ratio("p50 latency")))
        costs = [self.median(name, "bridge") for name in self.runs if name.endswith("mappings")]
        if len(costs) > 1 and costs[0] and costs[-1]:
            growth = costs[-1] / costs[0]
            found.append(Target("bridge, cost of a frame, most mappings", "one mapping", FLAT, True, growth))
        return found

    def rows(self) -> list[list[str]]:
        rows = []
        for name in self.runs:
            shown = [self.median(name, "raw"), self.median(name, "bridge"), self.ratio(name)]
            rows.append([name, *("-" if one is None else f"{one:,.2f}" for one in shown)])
        return rows

    @staticmethod
    def words() -> str:
        return (
            "Bridge: both ends and their media drivers in one process, UDP over loopback; medians of "
            f"{SLICES} short pairs for each run; goodput in MiB/s, "
            "latency in µs from the offer to the whole frame at the other end; with many mappings µs a frame "
            "of 64 KiB, offered to each in turn, beside a raw publication and as many idle ones."
        )


def measure(settings: Settings) -> Bridged:
    made = Bridged()
    # Its producers come after the bridge: here that is no news.
    logging.getLogger("tensorpool.bridge").setLevel(logging.ERROR)
    seconds = 0.3 if settings.is_quick else 1.0
    deadline = time.monotonic() + settings.patience_s
    cases: dict[str, Callable[[str], Run]] = {
        f"goodput, {name}": partial(_goodput, mtu, seconds) for name, mtu in MTUS.items()
    }
    cases["p50 latency"] = partial(_latency, 50 if settings.is_quick else 700)
    for count in QUICK_MAPPINGS if settings.is_quick else MAPPINGS:
        cases[f"{count} mappings"] = partial(_many, count, seconds)
    # Short and often: raw and bridge of one pair then meet the same neighbours, and the median is of many.
    runs = 1 if settings.is_quick else SLICES * settings.runs
    for number in range(runs):
        for name, case in cases.items():
            progress(f"bridge: {name}, pair {number + 1} of {runs}")
            try:
                run = undisturbed(case, deadline)
            except (AssertionError, tp.errors.TensorPoolError) as error:
                made.failures.append(f"bridge, {name}: {error}")
                continue
            made.runs.setdefault(name, []).append(run)
    return made


@dataclass
class Ends:
    """Two contexts on media drivers of their own."""

    here: tp.Context
    there: tp.Context
    stack: ExitStack

    def bridge(self, channel: str, control: str, streams: int) -> tuple[BridgeAgent, BridgeAgent]:
        agents = []
        for ctx, direction in ((self.there, "receive"), (self.here, "send")):
            table = {
                "instance_id": direction,
                "direction": direction,
                "payload_channel": channel,
                "control_channel": control,
                "forward_metadata": False,
                "idle": IDLE,
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


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _UP_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} within {_UP_S:g} s"
        time.sleep(0.005)


def _channel(*words: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.bind(("127.0.0.1", 0))
        return "|".join((f"aeron:udp?endpoint=127.0.0.1:{one.getsockname()[1]}", *words))


@contextmanager
def _ends(directory: str) -> Iterator[Ends]:
    with ExitStack() as stack:
        contexts = []
        for name in ("here", "there"):
            base = Path(directory) / name
            base.mkdir(mode=0o700)
            ctx = tp.open("embedded", aeron_dir=base / "aeron", shm_base_dir=base, namespace=f"bench-{name}")
            contexts.append(stack.enter_context(ctx))
        yield Ends(contexts[0], contexts[1], stack)


@contextmanager
def _beside(work: Callable[[], None]) -> Iterator[None]:
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
def _raw(ends: Ends, channel: str) -> Iterator[tuple[_native.RawPublication, _native.RawSubscription]]:
    """Aeron alone: native loops on the caller's thread, messages as long as the MTU allows."""
    subscription = _native.RawSubscription(ends.there._conductor, channel, 2000)
    publication = _native.RawPublication(ends.here._conductor, channel, 2000)
    _until(
        lambda: publication.is_connected and subscription.is_connected, "a raw publication was not connected"
    )
    yield publication, subscription
    publication.close()
    subscription.close()


def _rate(count: Callable[[], int], seconds: float) -> float:
    """Of what is counted, after the first moments."""
    time.sleep(seconds / 4)
    first, began = count(), time.perf_counter()
    time.sleep(seconds)
    return (count() - first) / (time.perf_counter() - began)


def _goodput(mtu: int, seconds: float, directory: str) -> Run:
    frame = np.random.default_rng(1).integers(0, 256, FRAME_BYTES, dtype=np.uint8)
    with _ends(directory) as ends:
        with _raw(ends, _channel(f"mtu={mtu}")) as (publication, subscription):
            # A camera's frames lie in a ring on either way.
            ring = np.tile(frame, NSLOTS).tobytes()

            def offer() -> None:
                publication.send(ring, 1, 0.1)

            def drain() -> None:
                subscription.receive(subscription.received + len(ring), 0.1)

            with _beside(offer), _beside(drain):
                raw = _rate(lambda: subscription.received, seconds)
        agents = ends.bridge(_channel(f"mtu={mtu}"), _channel(), 1)
        with _filmed(ends, agents, frame) as bytes_of:
            ours = _rate(bytes_of, seconds)
    return {"raw": raw / (1 << 20), "bridge": ours / (1 << 20)}


def void(_: object) -> None:
    """What came of it is counted elsewhere."""


@contextmanager
def _filmed(
    ends: Ends, agents: tuple[BridgeAgent, BridgeAgent], frame: npt.NDArray[Any], streams: int = 1
) -> Iterator[Callable[[], int]]:
    """Producers that publish as fast as frames leave; gives the bytes that have arrived.

    What is in a slot is sent as it is: filling it is the camera's work, on either way.
    """
    sender, receiver = agents
    stride, nslots = 1 << (frame.nbytes - 1).bit_length(), NSLOTS
    producers = [
        ends.stack.enter_context(ends.here.producer(10_000 + n, pools=[stride], nslots=nslots))
        for n in range(streams)
    ]

    def is_up() -> bool:
        sent, there = sender.rows(), receiver.rows()
        return (
            all(
                row["connected"] and row["epoch"] == str(p.epoch)
                for row, p in zip(sent, producers, strict=True)
            )
            and all(row["destination"] == "attached" for row in there)
            and all(producer.is_connected for producer in producers)
        )

    _until(is_up, "the bridge was not up")
    sending = sender._ends.sender
    native = next(iter(sending._senders.values()))
    turn = 0

    def offer() -> None:
        nonlocal turn
        producer = producers[turn % streams]
        turn += 1
        # The rest waits in its slots: whoever asks too often takes the cores from those who work.
        while producer.next_seq - _done(native, producer.stream_id) >= nslots // 2:
            time.sleep(1e-3)
        with producer.claim(frame.shape, frame.dtype):
            pass

    with _beside(offer):
        yield lambda: sum(row["bytes"] for row in receiver.rows())


def _done(native: _native.BridgeSender, stream_id: int) -> int:
    counters = native.counters(stream_id)
    return counters["sent"] + counters["overwritten"] + counters["unannounced"] + counters["not_connected"]


def _latency(count: int, directory: str) -> Run:
    frame = np.zeros(SMALL_BYTES, np.uint8)
    with _ends(directory) as ends:
        with _raw(ends, _channel()) as (publication, subscription):
            message = frame.tobytes()

            def raw_once() -> None:
                assert publication.send(message, 1, _UP_S)
                assert subscription.receive(subscription.received + SMALL_BYTES, _UP_S)

            raw = _p50(raw_once, count)
        agents = ends.bridge(_channel(), _channel(), 1)
        producer = ends.stack.enter_context(ends.here.producer(10_000, pools=[SMALL_BYTES], nslots=8))
        consumer = ends.stack.enter_context(ends.there.consumer(50_000, idle="yield"))
        sender, receiver = agents
        _until(
            lambda: (
                producer.is_connected
                and sender.rows()[0]["connected"]
                and sender.rows()[0]["epoch"] == str(producer.epoch)
                and receiver.rows()[0]["destination"] == "attached"
                and str(consumer.epoch) == receiver.rows()[0]["epoch"]
            ),
            "the bridge was not up",
        )

        def once() -> None:
            producer.offer(frame)
            void(consumer.receive(_UP_S))

        ours = _p50(once, count)
    return {"raw": raw, "bridge": ours}


def _p50(once: Callable[[], None], count: int) -> float:
    times = []
    for _ in range(count):
        began = time.perf_counter_ns()
        once()
        times.append(time.perf_counter_ns() - began)
    return statistics.median(times[count // 10 :]) / 1e3


def _many(count: int, seconds: float, directory: str) -> Run:
    frame = np.zeros(SMALL_BYTES, np.uint8)
    with _ends(directory) as ends:
        raw = _many_raw(ends, count, seconds)
        agents = ends.bridge(_channel(), _channel(), count)
        with _filmed(ends, agents, frame, count) as bytes_of:
            ours = _rate(bytes_of, seconds) / SMALL_BYTES
    return {"raw": 1e6 / raw if raw else None, "bridge": 1e6 / ours if ours else None}


def _are_connected(publications: list[_native.RawPublication]) -> bool:
    return all(one.is_connected for one in publications)


def _many_raw(ends: Ends, count: int, seconds: float) -> float:
    """Frames a second of Aeron alone, while its media drivers have as many other publications as streams have
    descriptors to publish: they look at each of them at each turn."""
    channel, message = _channel(), bytes(SMALL_BYTES)
    with ExitStack() as stack:
        for conductor in (ends.here._conductor, ends.there._conductor):
            ear = _native.RawSubscription(conductor, "aeron:ipc", 2001)
            stack.callback(ear.close)
            silent = [_native.RawPublication(conductor, "aeron:ipc", 2001) for _ in range(count)]
            for one in silent:
                stack.callback(one.close)
            _until(partial(_are_connected, silent), "publications were not connected")
        publication, subscription = stack.enter_context(_raw(ends, channel))

        def offer() -> None:
            publication.send(message, 1, 0.1)

        def drain() -> None:
            subscription.receive(subscription.received + (1 << 20), 0.1)

        with _beside(offer), _beside(drain):
            return _rate(lambda: subscription.received, seconds) / SMALL_BYTES
