"""Storage of a test's own, and whole drivers on a real media driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tensorpool import _native
from tensorpool.clock import ManualClock
from tensorpool.driver import EmbeddedDriver
from tensorpool.driver.actions import AssignFiles, FileResult, FilesReady, MakeFiles, RemoveFiles
from tensorpool.driver.lock import driver_state
from tensorpool.driver.plan import StreamPlan
from tensorpool.driver.storage import Storage
from tensorpool.shm import EpochFiles
from tensorpool.transport import MediaDriver
from tests.unit.driver.party import SMALL, Client, Stage, agent, connect
from tests.unit.driver.world import layout
from tests.unit.shm.conftest import mounted as mounted  # noqa: PLC0414 the fixture is used here too

Job = MakeFiles | AssignFiles | RemoveFiles


class Shelf:
    """A storage, asked one thing at a time."""

    def __init__(self, storage: Storage, base: Path, wait_until: Callable[..., Any]) -> None:
        self.storage = storage
        self.base = base
        self._wait_until = wait_until

    def do(self, job: Job) -> FileResult:
        self.storage.submit(job)
        (result,) = self._wait_until(self.storage.poll)
        return result

    def make(self, plan: StreamPlan) -> EpochFiles:
        result = self.do(MakeFiles(plan))
        assert isinstance(result, FilesReady), result
        return result.files

    def assign(self, plan: StreamPlan, files: EpochFiles) -> EpochFiles:
        result = self.do(AssignFiles(plan, files))
        assert isinstance(result, FilesReady), result
        return result.files

    def remove(self, plan: StreamPlan, files: EpochFiles) -> None:
        self.do(RemoveFiles(plan.stream_id, files.directory))

    def idle(self) -> None:
        self._wait_until(lambda: self.storage.is_idle)

    def files(self) -> list[Path]:
        """Everything below the base."""
        return sorted(self.base.rglob("*"))


@pytest.fixture
def make_shelf(shm_base: Path, wait_until: Callable[..., Any]) -> Iterator[Callable[..., Shelf]]:
    with ExitStack() as stack:

        def make(
            base: Path = shm_base,
            place: str = "default",
            stale_after_ns: int = 3_000_000_000,
            prefault: bool = False,
        ) -> Shelf:
            state = driver_state(base, place)
            storage = Storage(base, place, state, stale_after_ns=stale_after_ns, prefault=prefault)
            stack.callback(storage.close)
            return Shelf(storage, base, wait_until)

        yield make


@pytest.fixture
def shelf(make_shelf: Callable[..., Shelf]) -> Shelf:
    return make_shelf()


@pytest.fixture
def plan(free_stream_id: int) -> StreamPlan:
    """A small stream."""
    return StreamPlan(free_stream_id, layout(4, 4096, 16384), is_static=True)


# --- whole drivers


@pytest.fixture
def media_driver(aeron_dir: Path) -> Iterator[Path]:
    with MediaDriver(str(aeron_dir)):
        yield aeron_dir


@pytest.fixture
def on(media_driver: Path, shm_base: Path) -> Iterator[_native.Conductor]:
    with connect(media_driver, shm_base) as context:
        yield context.connection.conductor


@pytest.fixture
def stage(on: _native.Conductor, media_driver: Path, shm_base: Path) -> Iterator[Callable[..., Stage]]:
    with ExitStack() as stack:

        def make(**settings: Any) -> Stage:
            clock = ManualClock()
            usual: dict[str, Any] = {"streams": (SMALL,), "clock": clock}
            made = Stage(agent(on, media_driver, shm_base, **(usual | settings)), clock)
            stack.callback(made.runner.close)
            return made

        yield make


@pytest.fixture
def join(media_driver: Path, shm_base: Path) -> Iterator[Callable[..., Client]]:
    """A client of a stage, or of a driver that runs by itself."""
    with ExitStack() as stack:

        def make(stage: Stage | None = None) -> Client:
            client = Client(media_driver, shm_base, stage.turn if stage else lambda: None)
            stack.callback(client.close)
            return client

        yield make


@pytest.fixture
def embed(
    on: _native.Conductor, media_driver: Path, shm_base: Path
) -> Iterator[Callable[..., EmbeddedDriver]]:
    with ExitStack() as stack:

        def make(**settings: Any) -> EmbeddedDriver:
            usual: dict[str, Any] = {"streams": (SMALL,), "embedded": True}
            return stack.enter_context(
                EmbeddedDriver(agent(on, media_driver, shm_base, **(usual | settings)))
            )

        yield make
