"""Some streams to ask for."""

from __future__ import annotations

import pytest

from tests.unit.discovery.world import SAMPLE, World


@pytest.fixture
def world() -> World:
    made = World()
    for one in SAMPLE:
        made.add(**one)
    return made
