"""A provider of discovery: announces and requests in, responses out. Drivers and registries each have one.

The thread whose duty cycle calls `do_work` owns it. Whatever clients request, the number of open response
channels and the bytes of queued responses are bounded, and so is the memory of channels that the media driver
has not removed yet.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from .. import _native
from ..attributes.tags import MAX_TAG_BYTES, MAX_TAGS
from ..monitor.reports import AnnounceReader, RejectedMessage
from ..sbe import DataSourceMeta
from .channels import IPC
from .config import RESPONSE_STREAM_ID, ProviderSettings
from .index import DiscoveryIndex
from .requests import DiscoveryCounters, Reply, RequestQueue, TokenBucket, is_discovery
from .responses import too_large

_LOG = logging.getLogger(__name__)
_MIN_ANNOUNCES: Final = 1024
_ANNOUNCES_A_STREAM: Final = 4
"""Announce, name and attributes of the producer, and metadata of the driver."""
_WARNINGS_HZ: Final = 10
_RESPONSE_TIMEOUT_NS: Final = 2_000_000_000
"""How long a response waits for a subscriber: a UDP stream takes a moment to connect."""
_MIN_IDLE_NS: Final = 1_000_000_000
"""A channel that was used within this time is not closed to make room for another."""
_NEW_CHANNELS_HZ: Final = 20
_FREE_SHARE: Final = 4
"""One part in this many of the media driver's filesystem stays free of response channels. The media driver
keeps a closed one for seconds: a flood of requests with ever new ones would leave no memory for clients."""
_MAX_QUEUED: Final = 64
_MAX_QUEUED_BYTES: Final = 16 << 20
_MAX_REQUESTS_A_TURN: Final = 16
"""A response with all streams takes milliseconds: more of them would delay the rest of the duty cycle."""


class IndexUpdater:
    """Updates the index with the announces and metadata of one driver's streams.

    `accepts` decides by stream id which messages are this driver's.
    """

    def __init__(
        self,
        index: DiscoveryIndex,
        instance_id: str,
        counters: DiscoveryCounters,
        accepts: Callable[[int], bool] = lambda stream_id: True,
    ) -> None:
        self._index = index
        self._instance_id = instance_id
        self._counters = counters
        self._reader = AnnounceReader(accepts)
        self._warnings = TokenBucket(_WARNINGS_HZ, _WARNINGS_HZ, 0)

    def on_message(self, message: bytes, now_ns: int) -> bool:
        """Takes a message. False: it is about no stream of this driver. Never raises."""
        event = self._reader.read(message)
        if event is None:
            return False
        if isinstance(event, RejectedMessage):
            self._counters.rejected[event.reason].add()
            return True
        result = self._index.observe(self._instance_id, event, now_ns)
        if result.is_rejection:
            self._counters.rejected[str(result)].add()
        elif isinstance(event, DataSourceMeta):
            self._report_ignored_tags(event, now_ns)
        if self._reader.cached_messages > _ANNOUNCES_A_STREAM * max(len(self._index), _MIN_ANNOUNCES):
            # Streams end, and messages may name any id: what is dropped here is decoded once more.
            self._reader.clear()
        return True

    def _report_ignored_tags(self, meta: DataSourceMeta, now_ns: int) -> None:
        """Counts and logs tags that are not in the index. Repeated metadata does not come here."""
        ignored = self._index.ignored_tags(self._instance_id, meta)
        for reason, count in ignored.items():
            self._counters.ignored_tags[reason].add(count)
        # Any process can publish metadata, each time with other tags.
        if ignored and self._warnings.take(now_ns):
            _LOG.warning(
                "stream %d of driver %r: %s of its tags cannot be searched for; a stream has up to %d tags "
                "of up to %d bytes",
                meta.stream_id,
                self._instance_id,
                ", ".join(f"{count} ({reason})" for reason, count in ignored.items()),
                MAX_TAGS,
                MAX_TAG_BYTES,
            )


class Publication(Protocol):
    """The part of an Aeron publication that responses need."""

    def offer(self, message: bytes, /) -> str:
        """Offers a message; returns the outcome."""

    @property
    def is_ready(self) -> bool:
        """Whether the conductor has registered it."""

    @property
    def max_message_length(self) -> int | None:
        """Bytes of the longest message; None until it is ready."""

    @property
    def failure(self) -> str | None:
        """Why the media driver refused it."""

    def close(self) -> None:
        """Closes it. A second call does nothing."""


@dataclass(slots=True)
class _ResponseChannel:
    publication: Publication
    used_ns: int
    is_permanent: bool
    queue: deque[tuple[Reply, int]] = field(default_factory=deque)
    """Replies with their deadlines."""


class ResponsePublisher:
    """Publications to clients. Each reply is sent as soon as its channel takes it; unused channels close."""

    def __init__(
        self,
        open_publication: Callable[[str, int], Publication],
        counters: DiscoveryCounters,
        *,
        max_channels: int,
        idle_ns: int,
        now_ns: int,
        has_memory: Callable[[], bool] = lambda: True,
    ) -> None:
        self._open = open_publication
        self._has_memory = has_memory
        self._counters = counters
        self._max_channels = max_channels
        self._idle_ns = idle_ns
        self._channels: dict[tuple[str, int], _ResponseChannel] = {}
        self._new_channels = TokenBucket(_NEW_CHANNELS_HZ, max(max_channels, _NEW_CHANNELS_HZ), now_ns)
        self._queued_bytes = 0
        counters.channels.bind(lambda: len(self._channels))

    def __len__(self) -> int:
        return len(self._channels)

    def add_permanent(self, channel: str, stream_id: int, now_ns: int) -> None:
        """Opens the channel that most clients use. It never closes, so that no other channels replace it."""
        publication = self._open(channel, stream_id)
        self._channels[channel, stream_id] = _ResponseChannel(publication, now_ns, is_permanent=True)

    def send(self, reply: Reply, now_ns: int) -> None:
        """Queues a reply. A reply without room is dropped and counted."""
        channel = self._channels.get((reply.channel, reply.stream_id)) or self._add(reply, now_ns)
        if channel is None:
            self._counters.refused["no_room"].add()
            return
        is_full = self._queued_bytes + len(reply.message) > _MAX_QUEUED_BYTES
        if is_full or len(channel.queue) >= _MAX_QUEUED:
            self._counters.unsent["full"].add()
            return
        channel.used_ns = now_ns
        channel.queue.append((reply, now_ns + _RESPONSE_TIMEOUT_NS))
        self._queued_bytes += len(reply.message)

    def do_work(self, now_ns: int) -> int:
        """Sends queued replies and closes unused channels. Returns the number of sent replies."""
        sent = 0
        for key, channel in list(self._channels.items()):
            if channel.queue:
                sent += self._flush(channel, now_ns)
                if channel.publication.failure is not None:
                    self._counters.unsent["refused"].add(len(channel.queue))
                    self._close(key)
            elif not channel.is_permanent and now_ns - channel.used_ns > self._idle_ns:
                self._close(key)
        return sent

    def close(self) -> None:
        """Closes all channels."""
        for key in list(self._channels):
            self._close(key)

    def _add(self, reply: Reply, now_ns: int) -> _ResponseChannel | None:
        # Any local client may name a channel within the media driver; those to other hosts are configured.
        if reply.channel == IPC and not self._has_memory():
            return None
        if len(self._channels) >= self._max_channels and not self._make_room(now_ns):
            return None
        if not self._new_channels.take(now_ns):
            return None
        publication = self._open(reply.channel, reply.stream_id)
        channel = _ResponseChannel(publication, now_ns, is_permanent=False)
        self._channels[reply.channel, reply.stream_id] = channel
        return channel

    def _make_room(self, now_ns: int) -> bool:
        idle = [
            (channel.used_ns, key)
            for key, channel in self._channels.items()
            if not channel.is_permanent and not channel.queue and now_ns - channel.used_ns > _MIN_IDLE_NS
        ]
        if not idle:
            return False
        _, least_recent = min(idle)
        self._close(least_recent)
        return True

    def _flush(self, channel: _ResponseChannel, now_ns: int) -> int:
        sent = 0
        while channel.queue:
            reply, deadline_ns = channel.queue[0]
            outcome = self._offer(channel.publication, reply)
            if outcome == "sent":
                self._counters.responses.add()
                sent += 1
            elif now_ns > deadline_ns:
                self._counters.unsent["not_connected"].add()
            else:
                break
            channel.queue.popleft()
            self._queued_bytes -= len(reply.message)
        return sent

    def _offer(self, publication: Publication, reply: Reply) -> str:
        max_length = publication.max_message_length
        if max_length is None:
            return "not_connected"
        if len(reply.message) <= max_length:
            return publication.offer(reply.message)
        outcome = publication.offer(too_large(reply.request_id, len(reply.message), max_length))
        if outcome == "sent":
            self._counters.errors.add()
        return outcome

    def _close(self, key: tuple[str, int]) -> None:
        channel = self._channels.pop(key)
        self._queued_bytes -= sum(len(reply.message) for reply, _ in channel.queue)
        channel.publication.close()


class DiscoveryProvider:
    """Answers requests from an index."""

    def __init__(
        self,
        conductor: _native.Conductor,
        index: DiscoveryIndex,
        settings: ProviderSettings,
        counters: DiscoveryCounters,
        *,
        aeron_dir: str,
        reserved: frozenset[int] = frozenset(),
        now_ns: int,
    ) -> None:
        """`reserved`: streams of `aeron:ipc` that have other uses, where no response may go."""
        self.index = index
        self.counters = counters
        counters.streams.bind(lambda: len(index))
        self._requests = RequestQueue(index, settings, counters, reserved=reserved, now_ns=now_ns)
        self._responses = ResponsePublisher(
            lambda channel, stream_id: _native.Publication(conductor, channel, stream_id),
            counters,
            max_channels=settings.max_channels,
            idle_ns=settings.channel_idle_ns,
            now_ns=now_ns,
            has_memory=lambda: _has_memory(aeron_dir),
        )
        self._responses.add_permanent(IPC, RESPONSE_STREAM_ID, now_ns)

    def accept(self, message: bytes, now_ns: int) -> bool:
        """Queues a message of discovery's schema; False for messages of other schemas."""
        if not is_discovery(message):
            return False
        self._requests.put(message, now_ns)
        return True

    def do_work(self, now_ns: int) -> int:
        """Answers queued requests and sends queued responses. Returns the number of both."""
        work = 0
        for reply in self._requests.take(now_ns, _MAX_REQUESTS_A_TURN):
            self._responses.send(reply, now_ns)
            work += 1
        return work + self._responses.do_work(now_ns)

    def close(self) -> None:
        """Closes all response channels."""
        self._responses.close()


def _has_memory(aeron_dir: str) -> bool:
    """Whether enough of the media driver's filesystem is free for one more response channel."""
    try:
        status = os.statvfs(aeron_dir)
    except OSError:
        return False
    return status.f_bavail * _FREE_SHARE >= status.f_blocks
