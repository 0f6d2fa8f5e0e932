"""Fixtures: one media driver for all tests of the SHM driver, and a harness per test."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import tensorpool as tp
from tests.integration.driver.announcer_harness import AnnouncerHarness, Regions


@pytest.fixture(scope="session")
def media_driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tp.MediaDriver]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        driver = tp.MediaDriver(f"/dev/shm/aeron-test-{os.getpid()}-{secrets.token_hex(4)}")
    with driver:
        yield driver


@pytest.fixture
def harness(
    media_driver: tp.MediaDriver, shm_base: Path, free_stream_ids: Callable[[], int]
) -> Iterator[AnnouncerHarness]:
    with ExitStack() as stack:
        yield AnnouncerHarness(stack, media_driver.aeron_dir, shm_base, free_stream_ids())


@pytest.fixture
def wait_for_lock_poll(wait_until: Callable[..., Any]) -> Callable[[Regions], None]:
    """Waits until the announcer has polled the lock of the regions: it does that before it refreshes their
    activity timestamps, and more often."""

    def wait(regions: Regions) -> None:
        for _ in range(2):
            before_ns = regions.activity_ns
            wait_until(lambda: regions.activity_ns > before_ns)  # noqa: B023  over before the next round

    return wait


@pytest.fixture
def stream_id(free_stream_ids: Callable[[], int]) -> int:
    return free_stream_ids()
