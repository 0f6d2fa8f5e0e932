"""Stream ids and channels that everybody uses unless told otherwise.

Where events travel unless told otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ConfigError

# An IPC publication waits for its slowest tethered reader. Ours are untethered, and the channel says how
# soon one that does not poll is put to rest, so that it also holds under a foreign media driver.
_UNTETHERED = (
    "untethered-window-limit-timeout=10ms|untethered-linger-timeout=10ms|untethered-resting-timeout=1s"
)
DEFAULT_DESCRIPTOR_TERM_BYTES = 16 << 20
# What Aeron allows; in between, powers of two.
MIN_TERM_BYTES, MAX_TERM_BYTES = 64 << 10, 1 << 30


@dataclass(frozen=True, slots=True)
class StreamIds:
    """Where each kind of message travels, on `aeron:ipc`."""

    control: int = 1000
    announce: int = 1001
    descriptor: int = 1100
    qos: int = 1200
    metadata: int = 1300


def term_fault(term_bytes: int) -> str | None:
    """Why Aeron has no terms of that length."""
    if MIN_TERM_BYTES <= term_bytes <= MAX_TERM_BYTES and term_bytes & (term_bytes - 1) == 0:
        return None
    return "use a power of two from 64KiB to 1GiB, as in 16MiB"


def descriptor_channel(term_bytes: int = DEFAULT_DESCRIPTOR_TERM_BYTES) -> str:
    """The channel of a producer's own publication of descriptors."""
    return f"aeron:ipc?term-length={term_bytes}|{_UNTETHERED}"


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
