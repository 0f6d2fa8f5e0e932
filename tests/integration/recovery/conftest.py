"""Real processes on a driver, and faults of every kind; see fleet.py."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.fork_server import ForkServer

from .deployment import LONG, Deployment, Periods

HERE = Path(__file__).parent
# Ten times the rounds.
LONG_TIMEOUT_S = 1800


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items if LONG else []:
        if item.path.is_relative_to(HERE) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LONG_TIMEOUT_S))


@pytest.fixture
def mount(shm_base: Path) -> Iterator[Callable[..., None]]:
    """`mount("tmpfs", "size=64k")`: puts a filesystem on the base directory, or skips where that is
    forbidden. Again with "remount,…" to change it. Nothing may be in it at the end."""
    is_mounted = False

    def put(kind: str, options: str) -> None:
        nonlocal is_mounted
        command = ["mount", "-t", kind, "-o", options, kind, str(shm_base)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode and not is_mounted:
            pytest.skip(f"a {kind} cannot be mounted here (it takes root): {done.stderr.strip()}")
        assert done.returncode == 0, done.stderr
        is_mounted = True

    yield put
    if is_mounted:
        left = [path.name for path in shm_base.rglob("*")]
        subprocess.run(["umount", str(shm_base)], check=True)
        assert left == []


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    """Here hundreds of processes are started, to be killed."""
    roles = ("client_process", "consumer_group", "malformed_sender", "other_user")
    with ForkServer(
        "tests.integration.faults.forking_process", *(f"{__package__}.{role}" for role in roles)
    ) as fork_server:
        yield fork_server


@pytest.fixture
def fleet(
    aeron_dir: Path,
    shm_base: Path,
    free_stream_id: int,
    tmp_path: Path,
    wait_until: Callable[..., Any],
    mount: Callable[..., None],
    fork_server: ForkServer,
) -> Iterator[Deployment]:
    """No process yet. What a test starts ends after it, the last first."""
    times = Periods()
    with ExitStack() as stack:
        fleet = Deployment(
            aeron_dir,
            shm_base,
            free_stream_id,
            times.announce,
            stack,
            config=tmp_path / "tensorpool.toml",
            wait_until=wait_until,
            fork_server=fork_server,
        )
        fleet.configure(times)
        yield fleet
