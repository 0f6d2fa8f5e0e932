"""One file a scenario: a function `run(stage)`, `SHARE` of the time, and in its docstring what it does."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Final, NamedTuple

from tests.chaos.stage import GRACE_S, Stage

NAMES: Final = (
    "kills", "starts", "pauses", "messages", "floods", "rings", "files", "memory", "recordings", "disks",
    "tables", "hosts", "soak",
)  # fmt: skip
NOT_TRIED: Final = (
    "a real network between two machines, and `netem`: two hosts are two systems on one machine",
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
    memory_bytes: int | None = None
    """The size of the filesystem of its regions and its media driver; None: that of /dev/shm."""
    grace_s: float = GRACE_S


def load(name: str) -> Scenario:
    """A scenario by its name."""
    module = import_module(f"tests.chaos.scenarios.{name}")
    assert module.__doc__ is not None
    title = module.__doc__.splitlines()[0].rstrip(".")
    memory_bytes = getattr(module, "MEMORY_BYTES", None)
    grace_s = getattr(module, "LEASE_GRACE_S", GRACE_S)
    return Scenario(name, title, module.SHARE, module.run, memory_bytes, grace_s)
