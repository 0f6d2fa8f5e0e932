"""The fork server of all commands, because the tests start hundreds and each imports the same modules."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e import commandline
from tests.fork_server import ForkServer

PRELOADED = ("driver", "stream", "service", "shm", "discover", "bridge", "registry")


@pytest.fixture(scope="session", autouse=True)
def command_fork_server() -> Iterator[None]:
    """Runs the fork server of `CommandLine.run`."""
    with ForkServer("rich.live", *(f"tensorpool.cli.{name}" for name in PRELOADED)) as fork_server:
        commandline.fork_server = fork_server
        yield
        commandline.fork_server = None
