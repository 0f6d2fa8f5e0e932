"""A camera in a process of its own, and consumers that follow its frames while they fill."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import tensorpool as tp
from tests.integration.hello.conftest import Wire
from tests.remote_process import RemoteProcess

from .roles import Camera

# Every step is told: what is tested here is not when.
EAGER: dict[str, Any] = {"progress": True, "progress_interval_us": 0, "progress_bytes": 0}


@dataclass(frozen=True)
class Studio:
    """What the processes of one test have in common."""

    options: dict[str, Any]
    stream_id: int
    wait_until: Callable[..., Any]
    _stack: ExitStack

    def camera(self, env: dict[str, str] | None = None, **options: Any) -> RemoteProcess:
        """A process that claims, fills and commits as it is told."""
        made = self._stack.enter_context(
            RemoteProcess(Camera, self.options, self.stream_id, options, env=env)
        )
        assert made.call("ready")
        return made

    def listens(self, camera: RemoteProcess, consumer: tp.Consumer, *, on_own: bool = True) -> None:
        """Waits until nothing that the camera tells of can be missed."""
        self.wait_until(
            lambda: camera.call("has_listeners") and consumer.standing()["progress_on_own"] == on_own
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
def studio(
    context: tp.Context, options: dict[str, Any], free_stream_id: int, wait_until: Callable[..., Any]
) -> Iterator[Studio]:
    with ExitStack() as stack:
        yield Studio(options, free_stream_id, wait_until, stack)


@pytest.fixture
def wire(context: tp.Context, wait_until: Callable[..., Any]) -> Iterator[Callable[..., Wire]]:
    """`wire(stream_id)`: the control stream unless another is named."""
    with ExitStack() as stack:

        def make(stream_id: int | None = None) -> Wire:
            made = Wire(context, context.stream_ids.control if stream_id is None else stream_id, wait_until)
            stack.callback(made.close)
            return made

        yield make


@pytest.fixture
def parts_of(wait_until: Callable[..., Any]) -> Callable[..., list[tp.Progress]]:
    """`parts_of(consumer, is_last)`: what comes until one of them is the last."""

    def collect(consumer: tp.Consumer, is_last: Callable[[tp.Progress], bool]) -> list[tp.Progress]:
        parts: list[tp.Progress] = []

        def done() -> bool:
            parts.extend(consumer.poll_progress())
            return any(is_last(part) for part in parts)

        wait_until(done)
        return parts

    return collect
