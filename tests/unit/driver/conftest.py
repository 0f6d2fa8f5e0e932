"""Fixtures: storage, and whole drivers on a real media driver."""

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
from tensorpool.driver.storage import BaseDirs, Storage
from tensorpool.shm import EpochFiles
from tensorpool.transport import MediaDriver
from tests.unit.driver.agent_harness import SMALL, AgentHarness, RawClient, agent, connect
from tests.unit.driver.state_harness import layout
from tests.unit.shm.conftest import mounted as mounted  # noqa: PLC0414 the fixture is used here too

Job = MakeFiles | AssignFiles | RemoveFiles


class StorageHarness:
    """A storage that runs one job at a time."""

    def __init__(self, storage: Storage, base: Path, wait_until: Callable[..., Any]) -> None:
        self.storage = storage
        self.base = base
        self._wait_until = wait_until

    def perform(self, job: Job) -> FileResult:
        self.storage.submit(job)
        (result,) = self._wait_until(self.storage.poll)
        return result

    def make(self, plan: StreamPlan) -> EpochFiles:
        result = self.perform(MakeFiles(plan))
        assert isinstance(result, FilesReady), result
        return result.files

    def assign(self, plan: StreamPlan, files: EpochFiles) -> EpochFiles:
        result = self.perform(AssignFiles(plan, files))
        assert isinstance(result, FilesReady), result
        return result.files

    def remove(self, plan: StreamPlan, files: EpochFiles) -> None:
        self.perform(RemoveFiles(plan.stream_id, files.directory))

    def idle(self) -> None:
        self._wait_until(lambda: self.storage.is_idle)

    def files(self) -> list[Path]:
        """All files and directories below the base."""
        return sorted(self.base.rglob("*"))


@pytest.fixture
def make_storage_harness(
    shm_base: Path, wait_until: Callable[..., Any]
) -> Iterator[Callable[..., StorageHarness]]:
    with ExitStack() as stack:

        def make(
            base: Path = shm_base,
            namespace: str = "default",
            stale_after_ns: int = 3_000_000_000,
            prefault: bool = False,
        ) -> StorageHarness:
            state = driver_state(base, namespace)
            storage = Storage(
                BaseDirs(base), namespace, state, stale_after_ns=stale_after_ns, prefault=prefault
            )
            stack.callback(storage.close)
            return StorageHarness(storage, base, wait_until)

        yield make


@pytest.fixture
def storage_harness(make_storage_harness: Callable[..., StorageHarness]) -> StorageHarness:
    return make_storage_harness()


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
def conductor(media_driver: Path, shm_base: Path) -> Iterator[_native.Conductor]:
    with connect(media_driver, shm_base) as context:
        yield context.connection.conductor


@pytest.fixture
def make_agent(
    conductor: _native.Conductor, media_driver: Path, shm_base: Path
) -> Iterator[Callable[..., AgentHarness]]:
    with ExitStack() as stack:

        def make(**settings: Any) -> AgentHarness:
            clock = ManualClock()
            defaults: dict[str, Any] = {"streams": (SMALL,), "clock": clock}
            harness = AgentHarness(agent(conductor, media_driver, shm_base, **(defaults | settings)), clock)
            stack.callback(harness.runner.close)
            return harness

        yield make


@pytest.fixture
def raw_client(media_driver: Path, shm_base: Path) -> Iterator[Callable[..., RawClient]]:
    """A client of an agent harness, or of a driver on its own thread."""
    with ExitStack() as stack:

        def make(make_agent: AgentHarness | None = None) -> RawClient:
            client = RawClient(media_driver, shm_base, make_agent.step if make_agent else lambda: None)
            stack.callback(client.close)
            return client

        yield make


@pytest.fixture
def embed(
    conductor: _native.Conductor, media_driver: Path, shm_base: Path
) -> Iterator[Callable[..., EmbeddedDriver]]:
    with ExitStack() as stack:

        def make(**settings: Any) -> EmbeddedDriver:
            defaults: dict[str, Any] = {"streams": (SMALL,), "embedded": True}
            return stack.enter_context(
                EmbeddedDriver(agent(conductor, media_driver, shm_base, **(defaults | settings)))
            )

        yield make
