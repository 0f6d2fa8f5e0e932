"""Aeron channels and stream ids, with their defaults (wire §5, service §4). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..errors import ConfigError

SHARED_CHANNEL: Final = "aeron:ipc"
"""The channel of the control, announce, descriptor, QoS and metadata streams."""
# An IPC publication waits for its slowest tethered subscription. Consumers subscribe untethered. The channel
# sets how soon the media driver rests an untethered subscription that is not polled, so that these timeouts
# also hold with a media driver that another program configured.
_UNTETHERED_TIMEOUTS: Final = (
    "untethered-window-limit-timeout=10ms|untethered-linger-timeout=10ms|untethered-resting-timeout=1s"
)
# Half a term may be on the way: 10 ms at a million frames a second. Later than that a reader is rested.
DEFAULT_DESCRIPTOR_TERM_BYTES: Final = 2 << 20
# Aeron's limits of a term length, which is a power of two.
MIN_TERM_BYTES: Final = 64 << 10
MAX_TERM_BYTES: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class StreamAddress:
    """A stream on an Aeron channel."""

    channel: str
    stream_id: int

    def __str__(self) -> str:
        return f"{self.channel}, stream {self.stream_id}"


@dataclass(frozen=True, slots=True)
class StreamIds:
    """The ids of the shared streams on `aeron:ipc`, by kind of message."""

    control: int = 1000
    announce: int = 1001
    descriptor: int = 1100
    qos: int = 1200
    metadata: int = 1300


def term_fault(term_bytes: int) -> str | None:
    """Why Aeron does not allow this term length; None if it does."""
    if MIN_TERM_BYTES <= term_bytes <= MAX_TERM_BYTES and term_bytes & (term_bytes - 1) == 0:
        return None
    return "use a power of two from 64KiB to 1GiB, as in 2MiB"


def descriptor_channel(term_bytes: int = DEFAULT_DESCRIPTOR_TERM_BYTES) -> str:
    """The channel on which a producer publishes descriptors."""
    return f"{SHARED_CHANNEL}?term-length={term_bytes}|{_UNTETHERED_TIMEOUTS}"


def untethered(channel: str) -> str:
    """`channel` for a subscription that may not hold a publication back."""
    return _with_tether(channel, "false")


def tethered(channel: str) -> str:
    """`channel` for a subscription that misses nothing: it holds publications back until it polls.

    Without the parameter the media driver decides, and those of this package choose untethered.
    """
    return _with_tether(channel, "true")


def _with_tether(channel: str, value: str) -> str:
    if "tether=" in channel:
        return channel
    return f"{channel}{'|' if '?' in channel else '?'}tether={value}"


@dataclass(frozen=True, slots=True)
class ServiceStreams:
    """The two streams of all services: commands on the control stream, echoes and status on the other.

    Between hosts they have two channels: commands go to the host of the services, and their replies to all
    who follow them.
    """

    control: int = 4000
    status: int = 4001
    control_channel: str = SHARED_CHANNEL
    status_channel: str = SHARED_CHANNEL

    def __post_init__(self) -> None:
        if self.control_address == self.status_address:
            raise ConfigError(
                f"control and status are both stream {self.control}: a service would receive its own replies"
            )

    @property
    def control_address(self) -> StreamAddress:
        """The stream of commands."""
        return StreamAddress(self.control_channel, self.control)

    @property
    def status_address(self) -> StreamAddress:
        """The stream of echoes, results and status."""
        return StreamAddress(self.status_channel, self.status)
