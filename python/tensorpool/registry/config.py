"""What a registry can be told by file and environment: `[registry]` and `[[registry.drivers]]`.

How it answers is in `[discovery.provider]`, as for a driver that answers for itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from ..attributes.tags import tags_fault
from ..discovery.channels import channel_fault
from ..discovery.config import REQUEST_STREAM_ID
from ..discovery.index import MAX_STREAMS
from ..runtime.config import DurationNs, IdRange, parse_duration, setting, settings, table

_MAX_STREAM_ID: Final = (1 << 31) - 1
_MAX_INSTANCE: Final = 128


def _stream(doc: str, default: int) -> int:
    number: int = setting(doc, default=default, minimum=1, maximum=_MAX_STREAM_ID)
    return number


def _instance_fault(text: str) -> str | None:
    if text and text.isascii() and text.isprintable() and text == text.strip() and len(text) <= _MAX_INSTANCE:
        return None
    return f"use 1 to {_MAX_INSTANCE} visible ASCII characters"


@table
class DriverSource:
    """A driver whose streams are known here. Announces carry no name of their driver: this gives it one."""

    instance_id: str = setting(
        "The driver's own instance_id, or its namespace where it has none: by that clients know their own "
        "driver again.",
        check=_instance_fault,
    )
    announce_channel: str = setting(
        "Where its announces are heard: `aeron:ipc` on the same media driver, else the UDP endpoint that its "
        "`announce_to` names.",
        default="aeron:ipc",
        check=channel_fault,
    )
    announce_stream_id: int = _stream("The stream of its announces.", 1001)
    metadata_channel: str | None = setting(
        "Where its producers' metadata is heard. None: the same channel.", default=None, check=channel_fault
    )
    metadata_stream_id: int = _stream("The stream of metadata.", 1300)
    control_channel: str = setting(
        "Where clients attach, told to whoever finds a stream.", default="aeron:ipc", check=channel_fault
    )
    control_stream_id: int = _stream("The stream of that.", 1000)
    announce_period_ns: DurationNs = setting(
        "How often it announces; a stream that was silent three times as long is forgotten.",
        default=parse_duration("1s"),
        minimum=parse_duration("10ms"),
    )
    streams: tuple[IdRange, ...] = setting(
        "Which stream ids are its, where several drivers announce in the same place. Empty: all.", default=()
    )
    tags: tuple[str, ...] = setting(
        "Tags that all its streams have here beside their own, as in `reach:bridge` for a driver on another "
        "machine.",
        default=(),
        check=tags_fault,
    )

    @property
    def places(self) -> tuple[tuple[str, int], ...]:
        """Channel and stream of all that is to be heard."""
        metadata = self.metadata_channel or self.announce_channel
        return (self.announce_channel, self.announce_stream_id), (metadata, self.metadata_stream_id)

    def has(self, stream_id: int) -> bool:
        return not self.streams or any(stream_id in one for one in self.streams)

    def is_confusable_with(self, other: DriverSource) -> bool:
        """Whether an announce could be either's."""
        if not set(self.places) & set(other.places):
            return False
        if not self.streams or not other.streams:
            return True
        return any(one.overlaps(two) for one in self.streams for two in other.streams)


@settings("registry")
class RegistrySettings:
    """Knows the streams of many drivers, and answers for them."""

    channel: str = setting("Where it is asked.", default="aeron:ipc", check=channel_fault)
    stream_id: int = _stream("The stream of that.", REQUEST_STREAM_ID)
    max_streams: int = setting(
        "Most streams of one driver.", default=MAX_STREAMS, minimum=1, maximum=1_000_000
    )
    drivers: tuple[DriverSource, ...] = setting("The drivers that it knows.", default=(), live=True)

    def check(self) -> Iterator[tuple[str, str]]:
        for instance_id, count in Counter(one.instance_id for one in self.drivers).items():
            if count > 1:
                yield "drivers", f"driver {instance_id!r} is there {count} times"
        for number, one in enumerate(self.drivers):
            for two in self.drivers[number + 1 :]:
                if one.instance_id != two.instance_id and one.is_confusable_with(two):
                    yield (
                        "drivers",
                        f"{one.instance_id!r} and {two.instance_id!r} announce in the same place: give each "
                        "its own stream ids (streams), channel or announce_stream_id",
                    )
