"""One file a scenario: a function `run(stage)`, `SHARE` of the time, and in its docstring what it does."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Final, NamedTuple

from tests.chaos.stage import Stage

NAMES: Final = ("kills", "pauses", "messages", "rings", "recordings", "disks", "soak")
NOT_TRIED: Final = (
    "a full region base and a full Aeron directory (their recovery is tested in `tests/integration`)",
    "truncated, swapped and symlinked region files under running programs",
    "two hosts with loss, duplicates and corruption on the wire (`tests/e2e/test_bridge_loss.py` has them)",
    "power failure: only processes are killed, not the machine",
    "other kernels, file systems and processors than the machine above",
)
"""What the schedule does not contain: the page says so."""


class Scenario(NamedTuple):
    """One scenario of the schedule."""

    name: str
    title: str
    share: float
    """Its part of the whole time, relative to the others."""
    run: Callable[[Stage], None]


def load(name: str) -> Scenario:
    """A scenario by its name."""
    module = import_module(f"tests.chaos.scenarios.{name}")
    assert module.__doc__ is not None
    return Scenario(name, module.__doc__.splitlines()[0].rstrip("."), module.SHARE, module.run)
