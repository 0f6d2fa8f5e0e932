"""Contexts that share one media driver directory and one base directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import tensorpool as tp


@pytest.fixture
def options(aeron_dir: Path, shm_base: Path) -> dict[str, Any]:
    return {"aeron_dir": str(aeron_dir), "shm_base_dir": str(shm_base), "announce_period": 0.5}


@pytest.fixture
def open_context(options: dict[str, Any]) -> Iterator[Callable[..., tp.Context]]:
    """Opens contexts in the test's directories; closes them at the end, last first."""
    with ExitStack() as stack:
        yield lambda *mode, **more: stack.enter_context(tp.open(*mode, **{**options, **more}))
