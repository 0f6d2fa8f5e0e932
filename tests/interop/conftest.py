"""The judge, started once for all tests that want it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interop.judge import Judge, built_judge


@pytest.fixture(scope="session")
def judge() -> Iterator[Judge]:
    running = Judge(built_judge())
    yield running
    running.close()
