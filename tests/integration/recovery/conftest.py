"""Fixtures of the recovery tests: a fork server, a mounted filesystem, and a deployment (`deployment.py`)."""

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
# For ten times the rounds.
LONG_TIMEOUT_S = 1800


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items if LONG else []:
        if item.path.is_relative_to(HERE) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LONG_TIMEOUT_S))


@pytest.fixture
def mount(shm_base: Path) -> Iterator[Callable[..., None]]:
    """`mount("tmpfs", "size=64k")` mounts a filesystem on the base directory, or skips the test without
    permission. A second call with "remount,…" changes it. It has to be empty at the end."""
    is_mounted = False

    def mount_base(kind: str, options: str) -> None:
        nonlocal is_mounted
        command = ["mount", "-t", kind, "-o", options, kind, str(shm_base)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode and not is_mounted:
            pytest.skip(f"cannot mount a {kind} (needs root): {result.stderr.strip()}")
        assert result.returncode == 0, result.stderr
        is_mounted = True

    yield mount_base
    if is_mounted:
        left = [path.name for path in shm_base.rglob("*")]
        subprocess.run(["umount", str(shm_base)], check=True)
        assert left == []


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    """A fork server, because these tests start and kill hundreds of processes."""
    roles = ("client_process", "consumer_group", "malformed_sender", "other_user")
    with ForkServer(
        "tests.integration.faults.forking_process", *(f"{__package__}.{role}" for role in roles)
    ) as fork_server:
        yield fork_server


@pytest.fixture
def deployment(
    aeron_dir: Path,
    shm_base: Path,
    free_stream_id: int,
    tmp_path: Path,
    wait_until: Callable[..., Any],
    mount: Callable[..., None],
    fork_server: ForkServer,
) -> Iterator[Deployment]:
    """A deployment without processes. Processes of the test end after it, the last first."""
    periods = Periods()
    with ExitStack() as stack:
        deployment = Deployment(
            aeron_dir,
            shm_base,
            free_stream_id,
            periods.announce,
            stack,
            config=tmp_path / "tensorpool.toml",
            wait_until=wait_until,
            fork_server=fork_server,
        )
        deployment.configure(periods)
        yield deployment
