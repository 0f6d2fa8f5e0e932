"""A media driver for each test, contexts and registries on it, and raw publications and subscriptions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import tensorpool as tp
from tensorpool import _native
from tensorpool.discovery import DiscoverySettings
from tensorpool.registry import DriverSource, RegistryAgent, RegistrySettings
from tensorpool.runtime import Runner

PERIOD_S = 0.2
# Timeout where an error is expected: time for a response, also on a busy machine.
UNMET_S = 3.0


@pytest.fixture
def media_driver(aeron_dir: Path) -> Iterator[tp.MediaDriver]:
    with tp.MediaDriver(aeron_dir) as driver:
        yield driver


@pytest.fixture
def open_context(media_driver: tp.MediaDriver, shm_base: Path) -> Iterator[Callable[..., tp.Context]]:
    """Opens contexts on the test's media driver, and closes them at its end."""
    defaults = {"aeron_dir": media_driver.aeron_dir, "shm_base_dir": shm_base, "announce_period": PERIOD_S}
    with ExitStack() as stack:
        yield lambda *mode, **more: stack.enter_context(tp.open(*mode, **{**defaults, **more}))


@pytest.fixture
def local_context(open_context: Callable[..., tp.Context]) -> tp.Context:
    """A context with the embedded driver."""
    return open_context("embedded")


@pytest.fixture
def remote_context(open_context: Callable[..., tp.Context], local_context: tp.Context) -> tp.Context:
    """A context that is attached to that driver."""
    return open_context("driver")


@pytest.fixture
def registry_on(wait_until: Callable[..., Any]) -> Iterator[Callable[..., RegistryAgent]]:
    """Runs a registry on a context, on its own thread, until the test ends."""
    with ExitStack() as stack:

        def run(context: tp.Context, *drivers: DriverSource, **settings: Any) -> RegistryAgent:
            provider = settings.pop("discovery", None) or DiscoverySettings()
            agent = RegistryAgent(
                context.connection,
                settings=RegistrySettings(drivers=drivers, **settings),
                discovery=provider,
            )
            stack.enter_context(Runner(agent))
            wait_until(agent.is_ready)
            return agent

        yield run


@pytest.fixture
def publication(wait_until: Callable[..., Any]) -> Iterator[Callable[..., _native.Publication]]:
    """Opens connected publications."""
    with ExitStack() as stack:

        def make(context: tp.Context, stream_id: int, channel: str = "aeron:ipc") -> _native.Publication:
            opened = _native.Publication(context.connection.conductor, channel, stream_id)
            stack.callback(opened.close)
            wait_until(lambda: opened.is_connected)
            return opened

        yield make


@pytest.fixture
def subscription(wait_until: Callable[..., Any]) -> Iterator[Callable[..., _native.Subscription]]:
    """Opens subscriptions."""
    with ExitStack() as stack:

        def make(
            context: tp.Context, stream_id: int, channel: str = "aeron:ipc?tether=false"
        ) -> _native.Subscription:
            opened = _native.Subscription(context.connection.conductor, channel, stream_id)
            stack.callback(opened.close)
            wait_until(lambda: opened.is_ready)
            return opened

        yield make


def discovery_of(context: tp.Context) -> dict[str, Any]:
    """The discovery counters of the driver."""
    with context.service("driver") as driver:
        counters: dict[str, Any] = driver.call("status")["discovery"]
    return counters
