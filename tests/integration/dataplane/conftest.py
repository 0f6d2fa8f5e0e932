"""One media driver for all tests; contexts, producers and consumers of a test's own."""

from __future__ import annotations

import dataclasses
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

# Long enough that no hold-up of the machine makes a living producer look dead; tests of just that say so.
PATIENCE_S = 20.0
DEADLINE_S = 60.0
_KINDS = len(dataclasses.fields(tp.StreamIds))
_STREAM_IDS = itertools.count(40_000, _KINDS)


@dataclass(frozen=True)
class Stream:
    """A producer and a consumer of one stream that know of each other."""

    producer: tp.Producer
    consumer: tp.Consumer

    def send(self, array: Any, **words: Any) -> tp.Frame:
        """Offers one frame and gives what the consumer made of it."""
        offered = self.producer.offer(array, **words)
        assert offered.outcome == "published"
        frame = self.consumer.receive(DEADLINE_S)
        assert frame.seq == offered.seq
        return frame


@pytest.fixture(scope="session")
def media_driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tp.MediaDriver]:
    """The media driver that every test attaches to."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        driver = tp.MediaDriver(f"/dev/shm/aeron-test-{os.getpid()}-{secrets.token_hex(4)}")
    with driver:
        yield driver


@pytest.fixture
def open_context(media_driver: tp.MediaDriver, shm_base: Path) -> Iterator[Callable[..., tp.Context]]:
    """Opens contexts on the shared media driver, with regions below `shm_base`; closes them at the end."""
    # Of the test's own: a process that an earlier test killed is there for the media driver a while longer,
    # and what nobody has read of it would be read here.
    first = next(_STREAM_IDS)
    ids = tp.StreamIds(*range(first, first + _KINDS))
    with ExitStack() as stack:

        def open_one(**settings: Any) -> tp.Context:
            usual: dict[str, Any] = {
                "stream_ids": ids,
                "aeron_dir": media_driver.aeron_dir,
                "media_driver": "external",
                "shm_base_dir": shm_base,
                "announce_period": PATIENCE_S / 3,
            }
            return stack.enter_context(tp.open(**(usual | settings)))

        yield open_one


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
        # Announces in a context of their own, often: a consumer that missed the first waits for the next.
        announcing = open_context(announce_period=0.1)
        # The consumer first, so that it misses no frame.
        reader = context.consumer(stream_id, **(consumer or {}))
        producer = announcing.producer(stream_id, **({"pools": ["64KiB"]} | settings))
        return joined(Stream(producer, reader))

    return connect


def joined(stream: Stream) -> Stream:
    """Waits until the producer has its subscriber and the consumer its mapping."""

    def both() -> bool:
        return stream.producer.is_connected and stream.consumer.epoch == stream.producer.epoch

    assert leaks.wait_for(both, timeout=DEADLINE_S)
    return stream


@pytest.fixture
def stream(connect: Callable[..., Stream]) -> Stream:
    return connect()


@pytest.fixture(scope="module")
def shared_stream(media_driver: tp.MediaDriver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stream]:
    """A stream for the many tests of a module that only send something through it."""
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
            tp.open(**settings, announce_period=PATIENCE_S / 3) as reading,
            tp.open(**settings, announce_period=0.1) as announcing,
        ):
            consumer = reading.consumer(10_000)
            producer = announcing.producer(10_000, pools=[64, "4KiB", "64KiB", "1MiB"])
            yield joined(Stream(producer, consumer))
    leaks.remove(base)


@pytest.fixture
def hostile(
    context: tp.Context, shm_base: Path, free_stream_id: int
) -> Iterator[Callable[..., HostileProducer]]:
    """Makes hostile producers of the test's stream on the test's context."""
    with ExitStack() as stack:

        def make(**settings: Any) -> HostileProducer:
            made = HostileProducer(context, shm_base, free_stream_id, **settings)
            return stack.enter_context(made)

        yield make


@pytest.fixture
def mapped(
    hostile: Callable[..., HostileProducer], context: tp.Context, free_stream_id: int
) -> tuple[HostileProducer, tp.Consumer]:
    """A hostile producer, and a consumer that has mapped its (still flawless) regions."""
    consumer = context.consumer(free_stream_id)
    producer = hostile()
    producer.announce_until(lambda: consumer.epoch == producer.epoch)
    return producer, consumer


@pytest.fixture
def numbers() -> np.ndarray:
    return np.arange(24, dtype=np.uint16).reshape(4, 6)


@pytest.fixture
def clock_passes(wait_until: Callable[..., Any]) -> Callable[[int], None]:
    """Waits until the monotonic clock has passed a moment: the one thing that only time can bring about."""
    return lambda moment_ns: wait_until(lambda: time.monotonic_ns() > moment_ns)


@pytest.fixture(autouse=True)
def _without_a_driver(standalone_mode: None) -> None:
    """The data plane alone: producers own their memory."""
