"""Where events travel unless told otherwise."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ConfigError


@dataclass(frozen=True, slots=True)
class ServiceStreams:
    """The shared streams of all services: commands on one, what was accepted and status on the other."""

    channel: str = "aeron:ipc"
    control: int = 4000
    status: int = 4001

    def __post_init__(self) -> None:
        if self.control == self.status:
            raise ConfigError(
                f"control and status are both stream {self.control}: a service would answer itself"
            )
