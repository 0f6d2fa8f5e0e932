"""Fixtures of the stress tests."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _standalone(standalone_mode: None) -> None:
    """The tests run without a driver: producers own their regions."""
