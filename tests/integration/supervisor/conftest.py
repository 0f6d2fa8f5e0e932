"""A system of real processes around one driver, and somebody who watches it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import tensorpool as tp
from tests.integration.supervisor.station import Station
from tests.remote import Remote

# Target is silent for five of them has left: long enough for a machine that is busy with other things.
PERIOD_S = 0.5


@pytest.fixture
def options(aeron_dir: Path, shm_base: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("TENSORPOOL_CONTEXT__HELLO_PERIOD", f"{int(PERIOD_S * 1000)}ms")
    return {"aeron_dir": str(aeron_dir), "shm_base_dir": str(shm_base), "announce_period": PERIOD_S}


@pytest.fixture
def hub(options: dict[str, Any]) -> Iterator[tp.Context]:
    """Has the media driver and the SHM driver."""
    with tp.open("embedded", **options) as ctx:
        yield ctx


@pytest.fixture
def station(options: dict[str, Any]) -> Iterator[Callable[[], Remote]]:
    """`station()`: a process of its own on that driver."""
    with ExitStack() as stack:

        def start() -> Remote:
            remote = stack.enter_context(Remote(_Opened))
            remote.call("open", **options)
            stack.callback(_close, remote)
            return remote

        yield start


def _close(remote: Remote) -> None:
    if remote.alive:
        remote.call("close")


class _Opened(Station):
    """Opens when it is told where."""

    def __init__(self) -> None:
        pass

    def open(self, **options: Any) -> None:
        super().__init__(mode="driver", **options)
