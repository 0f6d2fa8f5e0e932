"""A small laboratory for the console: streams of every kind of frame, and a browser on its page."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import tensorpool as tp
from benchmarks.pacing import repeating
from tensorpool.client import ReportOptions
from tensorpool.console.access import Tokens, new_token
from tensorpool.console.actions import request_handlers
from tensorpool.console.server import ConsoleOptions, ConsoleServer
from tensorpool.console.viewer import RequestHandler

ROWS, COLUMNS = np.mgrid[0:240, 0:320]
Frame = npt.NDArray[Any]


def detector(count: int) -> Frame:
    """A 16-bit detector: a moving spot of 60,000 counts on a noisy ground; element (3, 5) is 54321."""
    random = np.random.default_rng(count % 7)
    column, row = 160 + 90 * np.cos(count / 30), 120 + 60 * np.sin(count / 30)
    spot = 52_000 * np.exp(-((COLUMNS - column) ** 2 + (ROWS - row) ** 2) / 500)
    frame = (spot + random.integers(900, 1400, ROWS.shape)).astype(np.uint16)
    frame[3, 5] = 54_321
    return frame


def camera(count: int) -> Frame:
    """A colour camera."""
    shift = count * 2
    return np.stack(
        [(COLUMNS + shift) % 256, (ROWS * 2 + shift // 2) % 256, np.full(ROWS.shape, 90)], -1
    ).astype(np.uint8)


def spectrum(count: int) -> Frame:
    """A spectrum of 2,048 channels with two lines."""
    x = np.arange(2048)
    lines = np.exp(-((x - 600 - 80 * np.sin(count / 20)) ** 2) / 300) + 0.6 * np.exp(-((x - 1400) ** 2) / 900)
    noise = np.random.default_rng(count % 11).normal(0, 0.02, x.size)
    return (lines + noise).astype(np.float32)


def volume(count: int) -> Frame:
    """A stack of five planes of floats; the last plane has NaN and infinities."""
    planes = np.stack([np.sin(COLUMNS / (12 + 4 * k) + count / 10) * (k + 1) for k in range(5)])
    planes[4, :40, :40] = np.nan
    planes[4, 60:80, :40] = np.inf
    planes[4, 100:120, :40] = -np.inf
    return planes.astype(np.float32)


def publishing(
    producer: tp.Producer, make: Callable[[int], Frame], hz: float
) -> AbstractContextManager[None]:
    """Offers frames on another thread; they are made before, so that the rate holds on a busy machine."""
    frames = itertools.cycle([make(count) for count in range(0, 180, 3)])
    return repeating(lambda: producer.offer(next(frames)), hz)


@contextmanager
def reading(consumer: tp.Consumer, pause_s: float = 0.0) -> Iterator[None]:
    """Receives frames on another thread; with a pause after each it loses some."""
    stop = threading.Event()

    def receive() -> None:
        while not stop.is_set():
            consumer.receive_or_none(0.1)
            if pause_s:
                stop.wait(pause_s)

    thread = threading.Thread(target=receive)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@dataclass
class Laboratory:
    """The running system: a context, and the ids of its streams by name."""

    context: tp.Context
    aeron_dir: Path
    shm_base: Path
    streams: dict[str, int] = field(default_factory=dict)
    stack: ExitStack = field(default_factory=ExitStack)

    def produce(
        self, name: str, stream_id: int, make: Callable[[int], Frame], hz: float, **options: Any
    ) -> tp.Producer:
        """Starts a stream."""
        self.streams[name] = stream_id
        size = max(64, -(-make(0).nbytes // 1024))
        pool = f"{1 << (size - 1).bit_length()}KiB"
        producer = self.stack.enter_context(
            self.context.producer(stream_id, pools=[pool], nslots=16, name=name, **options)
        )
        self.stack.enter_context(publishing(producer, make, hz))
        return producer

    def consume(self, name: str, label: str, pause_s: float = 0.0, **options: Any) -> tp.Consumer:
        """Starts a consumer."""
        consumer = self.stack.enter_context(self.context.consumer(self.streams[name], label=label, **options))
        self.stack.enter_context(reading(consumer, pause_s))
        return consumer


@contextmanager
def laboratory(aeron_dir: Path, shm_base: Path) -> Iterator[Laboratory]:
    """An empty system on a private media driver with an embedded SHM driver."""
    with ExitStack() as stack:
        stack.enter_context(tp.MediaDriver(aeron_dir))
        ctx = stack.enter_context(
            tp.open("embedded", aeron_dir=aeron_dir, media_driver="external", shm_base_dir=shm_base)
        )
        lab = Laboratory(ctx, aeron_dir, shm_base)
        with lab.stack:
            yield lab


@contextmanager
def full_laboratory(
    aeron_dir: Path, shm_base: Path, free_stream_ids: Callable[[], int]
) -> Iterator[Laboratory]:
    """Four streams and five consumers, one of which is too slow and one limited."""
    with laboratory(aeron_dir, shm_base) as lab:
        lab.produce("detector", free_stream_ids(), detector, 100, tags=["lab"], metadata={"exposure_ms": 4})
        lab.produce("camera", free_stream_ids(), camera, 50)
        lab.produce("spectrum", free_stream_ids(), spectrum, 40)
        lab.produce("volume", free_stream_ids(), volume, 10)
        lab.consume("detector", "viewer")
        lab.consume("detector", "archive")
        lab.consume("camera", "slow-fit", pause_s=0.7)
        lab.consume("spectrum", "dashboard", max_rate_hz=5)
        lab.consume("volume", "registration")
        yield lab


@contextmanager
def console(
    lab: Laboratory,
    *,
    handlers: Callable[[ConsoleServer], Mapping[str, RequestHandler]] | None = None,
    **options: Any,
) -> Iterator[ConsoleServer]:
    """The console of a laboratory, in this process, on a context of its own."""
    usual = {"port": 0, "tokens": Tokens(steer=new_token()), "period_s": 0.5}
    settings = ConsoleOptions(**{**usual, **options})
    with tp.open(
        "standalone", aeron_dir=lab.aeron_dir, media_driver="external", shm_base_dir=lab.shm_base
    ) as ctx:
        ctx.report_options = ReportOptions.none()
        with ConsoleServer(ctx, settings, handlers=handlers or request_handlers()) as server:
            yield server
