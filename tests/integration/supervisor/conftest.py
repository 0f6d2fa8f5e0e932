"""A system of processes with endpoints around one driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import tensorpool as tp
from tests.integration.supervisor.endpoint_process import EndpointProcess
from tests.remote_process import RemoteProcess

# An endpoint without reports for five periods has left: long enough for a busy machine.
PERIOD_S = 0.5


@pytest.fixture
def options(aeron_dir: Path, shm_base: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("TENSORPOOL_CONTEXT__HELLO_PERIOD", f"{int(PERIOD_S * 1000)}ms")
    return {"aeron_dir": str(aeron_dir), "shm_base_dir": str(shm_base), "announce_period": PERIOD_S}


@pytest.fixture
def hub(options: dict[str, Any]) -> Iterator[tp.Context]:
    """A context with an embedded media driver and an embedded SHM driver."""
    with tp.open("embedded", **options) as ctx:
        yield ctx


@pytest.fixture
def endpoint_process(options: dict[str, Any]) -> Iterator[Callable[[], RemoteProcess]]:
    """`endpoint_process()` starts a process that is attached to that driver."""
    with ExitStack() as stack:

        def start() -> RemoteProcess:
            remote = stack.enter_context(RemoteProcess(_AttachedProcess))
            remote.call("open", **options)
            stack.callback(_close, remote)
            return remote

        yield start


def _close(remote: RemoteProcess) -> None:
    if remote.alive:
        remote.call("close")


class _AttachedProcess(EndpointProcess):
    """An endpoint process that opens its context by a call."""

    def __init__(self) -> None:
        pass

    def open(self, **options: Any) -> None:
        super().__init__(mode="driver", **options)
