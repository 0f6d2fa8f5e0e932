"""A context of its own for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tensorpool as tp


@pytest.fixture
def ctx(aeron_dir: Path, shm_base: Path) -> Iterator[tp.Context]:
    with tp.open(aeron_dir=str(aeron_dir), shm_base_dir=shm_base) as context:
        yield context
