"""One nursery for the commands of all tests: hundreds of them are started, and each would import the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e import commandline
from tests.nursery import Nursery

PRELOADED = ("driver", "stream", "service", "shm", "discover", "bridge", "registry")


@pytest.fixture(scope="session", autouse=True)
def command_nursery() -> Iterator[None]:
    with Nursery("rich.live", *(f"tensorpool.cli.{name}" for name in PRELOADED)) as nursery:
        commandline.nursery = nursery
        yield
        commandline.nursery = None
