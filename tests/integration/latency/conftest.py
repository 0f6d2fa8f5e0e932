"""Contexts with a short report period."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tensorpool as tp


@pytest.fixture
def connect(aeron_dir: Path, shm_base: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """`connect(**settings)`: a context with these settings of `[context]`."""
    opened: list[tp.Context] = []

    def connect(**settings: str) -> tp.Context:
        for name, value in {"hello_period": "100ms", **settings}.items():
            monkeypatch.setenv(f"TENSORPOOL_CONTEXT__{name.upper()}", value)
        opened.append(tp.open(aeron_dir=aeron_dir, shm_base_dir=shm_base))
        return opened[-1]

    yield connect
    for ctx in reversed(opened):
        ctx.close()
