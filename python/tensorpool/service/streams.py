"""Where events travel unless told otherwise."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServiceStreams:
    """The shared streams of all services: commands on one, what was accepted and status on the other."""

    channel: str = "aeron:ipc"
    control: int = 4000
    status: int = 4001
