"""The fixture `pair`: two hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.integration.bridge.hosts import Pair, open_host
from tests.ports import free_port


@pytest.fixture
def pair(aeron_dir: Path, shm_base: Path, wait_until: Callable[..., Any]) -> Iterator[Pair]:
    with ExitStack() as stack:
        here = open_host("here", Path(f"{aeron_dir}-a"), shm_base / "a", stack)
        there = open_host("there", Path(f"{aeron_dir}-b"), shm_base / "b", stack)
        yield Pair(here, there, (free_port(), free_port(), free_port()), wait_until)
    for name in ("a", "b"):
        (shm_base / name).rmdir()
