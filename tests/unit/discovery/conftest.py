"""A provider with a few sample streams."""

from __future__ import annotations

import pytest

from tests.unit.discovery.provider_harness import SAMPLE, ProviderHarness


@pytest.fixture
def harness() -> ProviderHarness:
    harness = ProviderHarness()
    for stream in SAMPLE:
        harness.add(**stream)
    return harness
