"""Fixtures of the service tests."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _without_a_driver(standalone_mode: None) -> None:
    """Services need no driver."""
