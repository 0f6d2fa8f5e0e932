"""A media driver of the test's own, contexts and registries on it, and voices that nobody vouches for."""

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
# For those who are told no: time for an answer, also where the cores are busy with something else.
UNMET_S = 3.0


@pytest.fixture
def media_driver(aeron_dir: Path) -> Iterator[tp.MediaDriver]:
    with tp.MediaDriver(aeron_dir) as driver:
        yield driver


@pytest.fixture
def open_context(media_driver: tp.MediaDriver, shm_base: Path) -> Iterator[Callable[..., tp.Context]]:
    """Opens contexts in the test's own place; closes them at the end, last first."""
    usual = {"aeron_dir": media_driver.aeron_dir, "shm_base_dir": shm_base, "announce_period": PERIOD_S}
    with ExitStack() as stack:
        yield lambda *mode, **more: stack.enter_context(tp.open(*mode, **{**usual, **more}))


@pytest.fixture
def home(open_context: Callable[..., tp.Context]) -> tp.Context:
    """Embeds the driver."""
    return open_context("embedded")


@pytest.fixture
def away(open_context: Callable[..., tp.Context], home: tp.Context) -> tp.Context:
    """Attached to it."""
    return open_context("driver")


@pytest.fixture
def registry_on(wait_until: Callable[..., Any]) -> Iterator[Callable[..., RegistryAgent]]:
    """Runs a registry on a context, on a thread of its own, until the test ends."""
    with ExitStack() as stack:

        def run(context: tp.Context, *drivers: DriverSource, **settings: Any) -> RegistryAgent:
            provider = settings.pop("discovery", None) or DiscoverySettings()
            agent = RegistryAgent(
                context.connection.conductor,
                settings=RegistrySettings(drivers=drivers, **settings),
                discovery=provider,
                service_streams=context.service_streams,
            )
            stack.enter_context(Runner(agent))
            wait_until(agent.is_ready)
            return agent

        yield run


@pytest.fixture
def voice(wait_until: Callable[..., Any]) -> Iterator[Callable[..., _native.Publication]]:
    """A publication that is heard by somebody."""
    with ExitStack() as stack:

        def make(context: tp.Context, stream_id: int, channel: str = "aeron:ipc") -> _native.Publication:
            publication = _native.Publication(context.connection.conductor, channel, stream_id)
            stack.callback(publication.close)
            wait_until(lambda: publication.is_connected)
            return publication

        yield make


@pytest.fixture
def ear(wait_until: Callable[..., Any]) -> Iterator[Callable[..., _native.Subscription]]:
    with ExitStack() as stack:

        def make(
            context: tp.Context, stream_id: int, channel: str = "aeron:ipc?tether=false"
        ) -> _native.Subscription:
            subscription = _native.Subscription(context.connection.conductor, channel, stream_id)
            stack.callback(subscription.close)
            wait_until(lambda: subscription.is_ready)
            return subscription

        yield make


def discovery_of(context: tp.Context) -> dict[str, Any]:
    """What the driver has counted of questions."""
    with context.service("driver") as driver:
        found: dict[str, Any] = driver.call("status")["discovery"]
    return found
