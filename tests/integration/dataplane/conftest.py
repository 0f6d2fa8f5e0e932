"""One media driver for all tests; contexts, producers and consumers for each test."""

from __future__ import annotations

import itertools
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tests import leaks
from tests.integration.dataplane.hostile import HostileProducer

# Freshness window: long enough that a producer on a busy host is never stale. Tests of staleness shorten it.
FRESHNESS_S = 20.0
DEADLINE_S = 60.0
# The kinds of shared streams.
_KINDS = 5
_STREAM_IDS = itertools.count(40_000, _KINDS)


@dataclass(frozen=True)
class Stream:
    """A producer and a consumer of one stream that are connected."""

    producer: tp.Producer
    consumer: tp.Consumer

    def send(self, array: Any, **options: Any) -> tp.Frame:
        """Offers a frame and returns it as the consumer receives it."""
        offered = self.producer.offer(array, **options)
        assert offered.outcome == "published"
        frame = self.consumer.receive(DEADLINE_S)
        assert frame.seq == offered.seq
        return frame


@pytest.fixture(scope="session")
def media_driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tp.MediaDriver]:
    """The media driver that every test connects to."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        driver = tp.MediaDriver(f"/dev/shm/aeron-test-{os.getpid()}-{secrets.token_hex(4)}")
    with driver:
        yield driver


@pytest.fixture
def open_context(media_driver: tp.MediaDriver, shm_base: Path) -> Iterator[Callable[..., tp.Context]]:
    """Opens contexts on the shared media driver, with regions below `shm_base`; closes them at the end."""
    # Stream ids of this test only: the media driver keeps the publications of a killed process for a while,
    # and their unread messages would be received here.
    first = next(_STREAM_IDS)
    control, announce, descriptor, qos, metadata = range(first, first + _KINDS)
    ids = tp.StreamIds(control, announce, descriptor, qos, metadata)
    with ExitStack() as stack:

        def open_context(**settings: Any) -> tp.Context:
            defaults: dict[str, Any] = {
                "stream_ids": ids,
                "aeron_dir": media_driver.aeron_dir,
                "media_driver": "external",
                "shm_base_dir": shm_base,
                "announce_period": FRESHNESS_S / 3,
            }
            return stack.enter_context(tp.open(**(defaults | settings)))

        yield open_context


@pytest.fixture
def context(open_context: Callable[..., tp.Context]) -> tp.Context:
    return open_context()


@pytest.fixture
def connect(
    context: tp.Context, open_context: Callable[..., tp.Context], free_stream_ids: Callable[[], int]
) -> Callable[..., Stream]:
    """`connect(nslots=…)`: a new stream whose consumer has mapped its producer."""

    def connect(*, consumer: dict[str, Any] | None = None, **settings: Any) -> Stream:
        stream_id = free_stream_ids()
        # A context with a short announce period: a consumer that missed an announce waits for the next.
        announcing = open_context(announce_period=0.1)
        # The consumer is opened first, so that it misses no frame.
        reader = context.consumer(stream_id, **(consumer or {}))
        producer = announcing.producer(stream_id, **({"pools": ["64KiB"]} | settings))
        return wait_connected(Stream(producer, reader))

    return connect


def wait_connected(stream: Stream) -> Stream:
    """Waits until the producer has a subscriber and the consumer has mapped its regions."""

    def is_connected() -> bool:
        return stream.producer.is_connected and stream.consumer.epoch == stream.producer.epoch

    assert leaks.wait_for(is_connected, timeout=DEADLINE_S)
    return stream


@pytest.fixture
def stream(connect: Callable[..., Stream]) -> Stream:
    return connect()


@pytest.fixture(scope="module")
def shared_stream(media_driver: tp.MediaDriver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stream]:
    """One stream for all tests of a module that only send frames."""
    base = Path(f"/dev/shm/tensorpool-test-{os.getpid()}-{secrets.token_hex(4)}")
    base.mkdir(mode=0o700)
    ids = tp.StreamIds(announce=1901, descriptor=1900)
    settings: dict[str, Any] = {
        "aeron_dir": media_driver.aeron_dir,
        "media_driver": "external",
        "shm_base_dir": base,
        "stream_ids": ids,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.setenv("TENSORPOOL_CONTEXT__MODE", "standalone")
        with (
            tp.open(**settings, announce_period=FRESHNESS_S / 3) as reading,
            tp.open(**settings, announce_period=0.1) as announcing,
        ):
            consumer = reading.consumer(10_000)
            producer = announcing.producer(10_000, pools=[64, "4KiB", "64KiB", "1MiB"])
            yield wait_connected(Stream(producer, consumer))
    leaks.remove(base)


@pytest.fixture
def hostile(
    context: tp.Context, shm_base: Path, free_stream_id: int
) -> Iterator[Callable[..., HostileProducer]]:
    """Opens hostile producers of the test's stream on the test's context."""
    with ExitStack() as stack:

        def open_producer(**settings: Any) -> HostileProducer:
            return stack.enter_context(HostileProducer(context, shm_base, free_stream_id, **settings))

        yield open_producer


@pytest.fixture
def mapped(
    hostile: Callable[..., HostileProducer], context: tp.Context, free_stream_id: int
) -> tuple[HostileProducer, tp.Consumer]:
    """A hostile producer, and a consumer that has mapped its regions, which are still valid."""
    consumer = context.consumer(free_stream_id)
    producer = hostile()
    producer.announce_until(lambda: consumer.epoch == producer.epoch)
    return producer, consumer


@pytest.fixture
def numbers() -> np.ndarray:
    return np.arange(24, dtype=np.uint16).reshape(4, 6)


@pytest.fixture
def clock_passes(wait_until: Callable[..., Any]) -> Callable[[int], None]:
    """Waits until the monotonic clock has passed a time."""
    return lambda time_ns: wait_until(lambda: time.monotonic_ns() > time_ns)


@pytest.fixture(autouse=True)
def _standalone(standalone_mode: None) -> None:
    """Tests of the data plane run without a driver: producers own their regions."""
