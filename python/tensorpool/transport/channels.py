"""Aeron channels and stream ids, with their defaults (wire §5, service §4). Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ..errors import ConfigError

SHARED_CHANNEL: Final = "aeron:ipc"
"""The channel of the announce and descriptor streams; by default of the control, QoS and metadata streams
too."""
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
class DedicatedStreams:
    """The ids of Aeron streams that one stream uses instead of the shared ones (decision 41)."""

    stream_id: int
    descriptor: int | None = None
    control: int | None = None
    qos: int | None = None
    metadata: int | None = None


@dataclass(frozen=True, slots=True)
class StreamIds:
    """The shared streams by kind of message, and the dedicated streams of single streams.

    Announces and descriptors are on `aeron:ipc`. The other three may be on a UDP channel (wire §3);
    dedicated streams are on the same channels.
    """

    control: int = 1000
    """Hellos, configs, progress and messages of drivers."""
    announce: int = 1001
    """Announces of regions."""
    descriptor: int = 1100
    """Descriptors of frames."""
    qos: int = 1200
    """Counts of producers and consumers."""
    metadata: int = 1300
    """Names, attributes and blobs."""
    control_channel: str = SHARED_CHANNEL
    """The channel of the control stream."""
    qos_channel: str = SHARED_CHANNEL
    """The channel of the QoS stream."""
    metadata_channel: str = SHARED_CHANNEL
    """The channel of the metadata stream."""
    dedicated: tuple[DedicatedStreams, ...] = ()
    """Streams with Aeron streams of their own."""

    @property
    def control_address(self) -> StreamAddress:
        """The shared control stream."""
        return StreamAddress(self.control_channel, self.control)

    @property
    def control_addresses(self) -> list[StreamAddress]:
        """The shared control stream, and those of single streams."""
        return _addresses(self.control_channel, self.control, (each.control for each in self.dedicated))

    @property
    def qos_addresses(self) -> list[StreamAddress]:
        """The shared QoS stream, and those of single streams."""
        return _addresses(self.qos_channel, self.qos, (each.qos for each in self.dedicated))

    @property
    def metadata_addresses(self) -> list[StreamAddress]:
        """The shared metadata stream, and those of single streams."""
        return _addresses(self.metadata_channel, self.metadata, (each.metadata for each in self.dedicated))

    def dedicated_streams(self, stream_id: int) -> DedicatedStreams:
        """The dedicated streams of `stream_id`; None where it uses the shared one."""
        found = (each for each in self.dedicated if each.stream_id == stream_id)
        return next(found, DedicatedStreams(stream_id))

    def control_address_of(self, stream_id: int) -> StreamAddress:
        """The control stream that `stream_id` uses."""
        return StreamAddress(self.control_channel, self.dedicated_streams(stream_id).control or self.control)

    def metadata_address_of(self, stream_id: int) -> StreamAddress:
        """The metadata stream that `stream_id` uses."""
        return StreamAddress(
            self.metadata_channel, self.dedicated_streams(stream_id).metadata or self.metadata
        )


def _addresses(channel: str, shared: int, dedicated: Iterable[int | None]) -> list[StreamAddress]:
    ids = dict.fromkeys((shared, *(stream_id for stream_id in dedicated if stream_id is not None)))
    return [StreamAddress(channel, stream_id) for stream_id in ids]


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
    """The Aeron stream of commands."""
    status: int = 4001
    """The Aeron stream of echoes, results and status."""
    control_channel: str = SHARED_CHANNEL
    """The channel of the control stream."""
    status_channel: str = SHARED_CHANNEL
    """The channel of the status stream."""

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
