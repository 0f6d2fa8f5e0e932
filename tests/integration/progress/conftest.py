"""A camera process, and consumers that read its frames while they are written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import tensorpool as tp
from tests.integration.hello.conftest import RawMessages
from tests.remote_process import RemoteProcess

from .roles import Camera

# Requests a message for every step: the schedule is tested elsewhere.
EVERY_STEP: dict[str, Any] = {"progress": True, "progress_interval_us": 0, "progress_bytes": 0}


@dataclass(frozen=True)
class ProgressHarness:
    """Camera processes of one test, and waits for their consumers."""

    options: dict[str, Any]
    stream_id: int
    wait_until: Callable[..., Any]
    _stack: ExitStack

    def camera(self, env: dict[str, str] | None = None, **options: Any) -> RemoteProcess:
        """A process that claims, fills and commits slots by calls."""
        camera = self._stack.enter_context(
            RemoteProcess(Camera, self.options, self.stream_id, options, env=env)
        )
        assert camera.call("ready")
        return camera

    def wait_granted(
        self, camera: RemoteProcess, consumer: tp.Consumer, *, on_per_consumer: bool = True
    ) -> None:
        """Waits until the consumer receives all progress of the camera."""
        self.wait_until(
            lambda: (
                camera.call("has_progress_consumers")
                and consumer.state().progress_on_per_consumer == on_per_consumer
            )
        )


@pytest.fixture
def options(
    aeron_dir: Path, shm_base: Path, standalone_mode: None, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    monkeypatch.setenv("TENSORPOOL_CONTEXT__PROGRESS_INTERVAL", "0")
    monkeypatch.setenv("TENSORPOOL_CONTEXT__PROGRESS_STEP", "1")
    monkeypatch.setenv("TENSORPOOL_CONTEXT__HELLO_PERIOD", "200ms")
    return {"aeron_dir": str(aeron_dir), "shm_base_dir": str(shm_base), "announce_period": 5.0}


@pytest.fixture
def context(options: dict[str, Any]) -> Iterator[tp.Context]:
    with tp.open(**options) as ctx:
        yield ctx


@pytest.fixture
def harness(
    context: tp.Context, options: dict[str, Any], free_stream_id: int, wait_until: Callable[..., Any]
) -> Iterator[ProgressHarness]:
    with ExitStack() as stack:
        yield ProgressHarness(options, free_stream_id, wait_until, stack)


@pytest.fixture
def raw_messages(context: tp.Context, wait_until: Callable[..., Any]) -> Iterator[Callable[..., RawMessages]]:
    """`raw_messages(stream_id)`: messages on a stream; without an id, on the control stream."""
    with ExitStack() as stack:

        def open_stream(stream_id: int | None = None) -> RawMessages:
            stream = context.stream_ids.control if stream_id is None else stream_id
            messages = RawMessages(context, stream, wait_until)
            stack.callback(messages.close)
            return messages

        yield open_stream


@pytest.fixture
def collect_parts(wait_until: Callable[..., Any]) -> Callable[..., list[tp.Progress]]:
    """`collect_parts(consumer, is_last)`: partial frames up to the first for which `is_last` is true."""

    def collect(consumer: tp.Consumer, is_last: Callable[[tp.Progress], bool]) -> list[tp.Progress]:
        parts: list[tp.Progress] = []

        def done() -> bool:
            parts.extend(consumer.poll_progress())
            return any(is_last(part) for part in parts)

        wait_until(done)
        return parts

    return collect
