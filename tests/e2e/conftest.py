"""The fork server of all command tests: hundreds of commands start, and each would import the same modules."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e import commandline
from tests.fork_server import ForkServer

PRELOADED = ("driver", "stream", "service", "shm", "discover", "bridge", "registry")


@pytest.fixture(scope="session", autouse=True)
def command_fork_server() -> Iterator[None]:
    with ForkServer("rich.live", *(f"tensorpool.cli.{name}" for name in PRELOADED)) as fork_server:
        commandline.fork_server = fork_server
        yield
        commandline.fork_server = None
