"""Settings of a registry: `[registry]` and `[[registry.drivers]]`.

Its limits and visibility rules are in `[discovery.provider]`, as those of a driver.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from typing import Final

from ..attributes.tags import needs_bridge, tags_fault
from ..discovery.channels import channel_fault, is_ipc
from ..discovery.config import MAX_STREAMS, REQUEST_STREAM_ID
from ..runtime.config import DurationNs, IdRange, parse_duration, setting, settings, table
from ..transport import StreamAddress
from ..units import MAX_AERON_STREAM_ID

_MAX_INSTANCE: Final = 128


def _stream(doc: str, default: int) -> int:
    number: int = setting(doc, default=default, minimum=1, maximum=MAX_AERON_STREAM_ID)
    return number


def _instance_fault(text: str) -> str | None:
    if text and text.isascii() and text.isprintable() and text == text.strip() and len(text) <= _MAX_INSTANCE:
        return None
    return f"use 1 to {_MAX_INSTANCE} visible ASCII characters"


@table
class DriverSource:
    """A driver whose streams the registry indexes. Announces do not name their driver; this table does."""

    instance_id: str = setting(
        "The driver's own instance_id, or its namespace if it has none. Clients recognise their own driver "
        "by it.",
        check=_instance_fault,
    )
    announce_channel: str = setting(
        "Channel of its announces: `aeron:ipc` on the same media driver, else the UDP endpoint that its "
        "`announce_to` names.",
        default="aeron:ipc",
        check=channel_fault,
    )
    announce_stream_id: int = _stream("Stream of its announces.", 1001)
    metadata_channel: str | None = setting(
        "Channel of its producers' metadata. None: that of the announces.", default=None, check=channel_fault
    )
    metadata_stream_id: int = _stream("Stream of metadata.", 1300)
    control_channel: str = setting(
        "Channel on which clients attach; results contain it.", default="aeron:ipc", check=channel_fault
    )
    control_stream_id: int = _stream("Stream on which clients attach.", 1000)
    announce_period_ns: DurationNs = setting(
        "Period of its announces. A stream that is not announced for three periods is dropped.",
        default=parse_duration("1s"),
        minimum=parse_duration("10ms"),
    )
    streams: tuple[IdRange, ...] = setting(
        "Its stream ids, if several drivers announce on the same stream. Empty: all.", default=()
    )
    tags: tuple[str, ...] = setting(
        "Tags that the registry adds to all its streams, as in `reach:bridge` for a driver on another host.",
        default=(),
        check=tags_fault,
    )

    @property
    def is_local(self) -> bool:
        """Whether clients on the media driver of this registry can attach to its streams."""
        return is_ipc(self.announce_channel) and is_ipc(self.control_channel) and not needs_bridge(self.tags)

    @property
    def addresses(self) -> tuple[StreamAddress, ...]:
        """The streams of its announces and metadata."""
        metadata_channel = self.metadata_channel or self.announce_channel
        return (
            StreamAddress(self.announce_channel, self.announce_stream_id),
            StreamAddress(metadata_channel, self.metadata_stream_id),
        )

    def has(self, stream_id: int) -> bool:
        """Whether a stream id is one of its."""
        return not self.streams or any(stream_id in id_range for id_range in self.streams)

    def is_confusable_with(self, other: DriverSource) -> bool:
        """Whether an announce could be of either driver."""
        if not set(self.addresses) & set(other.addresses):
            return False
        if not self.streams or not other.streams:
            return True
        return any(mine.overlaps(theirs) for mine in self.streams for theirs in other.streams)


@settings("registry")
class RegistrySettings:
    """Answers discovery requests about the streams of many drivers."""

    channel: str = setting("Channel of requests.", default="aeron:ipc", check=channel_fault)
    stream_id: int = _stream("Stream of requests.", REQUEST_STREAM_ID)
    max_streams: int = setting(
        "Maximum of streams of one driver.", default=MAX_STREAMS, minimum=1, maximum=1_000_000
    )
    drivers: tuple[DriverSource, ...] = setting("The drivers.", default=(), live=True)

    def check(self) -> Iterator[tuple[str, str]]:
        """The faults of settings that depend on each other."""
        for instance_id, count in Counter(driver.instance_id for driver in self.drivers).items():
            if count > 1:
                yield "drivers", f"driver {instance_id!r} is listed {count} times"
        for driver, other in combinations(self.drivers, 2):
            if driver.instance_id != other.instance_id and driver.is_confusable_with(other):
                yield (
                    "drivers",
                    f"{driver.instance_id!r} and {other.instance_id!r} announce on the same stream: give "
                    "each its own stream ids (streams), channel or announce_stream_id",
                )
