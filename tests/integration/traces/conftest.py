"""Trace tests run without a driver."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _standalone(standalone_mode: None) -> None:
    """Traces need no driver."""
