"""A provider of discovery at work: questions in, answers out. A driver and a registry both have one.

One thread owns it: the one whose duty cycle calls `do_work`.

Publications to those who asked: few, kept while they are used, closed when they are not.

Owned by the provider's thread. Whatever strangers ask for, so many are open, so much waits, and no more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from .. import _native
from .channels import IPC
from .config import RESPONSE_STREAM_ID, ProviderSettings
from .index import DiscoveryIndex
from .state import DiscoveryCounters, Reply, RequestQueue, TokenBucket, is_discovery, too_large

_PATIENCE_NS: Final = 2_000_000_000
"""How long an answer waits for a listener: a UDP stream takes a moment to come about."""
_SPARE_NS: Final = 1_000_000_000
"""A channel that was used this lately is not closed to make room for another."""
_NEW_HZ: Final = 20
_MAX_WAITING: Final = 64
_MAX_WAITING_BYTES: Final = 16 << 20


class Publication(Protocol):
    """As much of an Aeron publication as is needed here."""

    def offer(self, message: bytes, /) -> str: ...
    @property
    def is_ready(self) -> bool: ...
    @property
    def max_message_length(self) -> int | None: ...
    @property
    def failure(self) -> str | None: ...
    def close(self) -> None: ...


@dataclass(slots=True)
class _Open:
    publication: Publication
    used_ns: int
    is_kept: bool
    waiting: deque[tuple[Reply, int]] = field(default_factory=deque)


class ResponsePublisher:
    """Sends replies, each as soon as its channel takes it."""

    def __init__(
        self,
        open_publication: Callable[[str, int], Publication],
        counters: DiscoveryCounters,
        *,
        most: int,
        idle_ns: int,
        now_ns: int,
    ) -> None:
        self._open = open_publication
        self._counters = counters
        self._most = most
        self._idle_ns = idle_ns
        self._channels: dict[tuple[str, int], _Open] = {}
        self._new = TokenBucket(_NEW_HZ, max(most, _NEW_HZ), now_ns)
        self._bytes = 0
        counters.channels.bind(lambda: len(self._channels))

    def __len__(self) -> int:
        return len(self._channels)

    def keep(self, channel: str, stream_id: int, now_ns: int) -> None:
        """Opens the channel that most use, and never closes it: no crowd of others can take its place."""
        self._channels[channel, stream_id] = _Open(self._open(channel, stream_id), now_ns, is_kept=True)

    def send(self, reply: Reply, now_ns: int) -> None:
        """Now, or soon, or never: then it is counted."""
        to = self._channels.get((reply.channel, reply.stream_id)) or self._make(reply, now_ns)
        if to is None:
            self._counters.refused["no_room"].add()
            return
        if len(to.waiting) >= _MAX_WAITING or self._bytes + len(reply.message) > _MAX_WAITING_BYTES:
            self._counters.unsent["full"].add()
            return
        to.used_ns = now_ns
        to.waiting.append((reply, now_ns + _PATIENCE_NS))
        self._bytes += len(reply.message)

    def do_work(self, now_ns: int) -> int:
        sent = 0
        for key, one in list(self._channels.items()):
            if one.waiting:
                sent += self._push(one, now_ns)
                if one.publication.failure is not None:
                    self._counters.unsent["refused"].add(len(one.waiting))
                    self._close(key)
            elif not one.is_kept and now_ns - one.used_ns > self._idle_ns:
                self._close(key)
        return sent

    def close(self) -> None:
        for key in list(self._channels):
            self._close(key)

    def _make(self, reply: Reply, now_ns: int) -> _Open | None:
        if len(self._channels) >= self._most and not self._make_room(now_ns):
            return None
        if not self._new.take(now_ns):
            return None
        made = _Open(self._open(reply.channel, reply.stream_id), now_ns, is_kept=False)
        self._channels[reply.channel, reply.stream_id] = made
        return made

    def _make_room(self, now_ns: int) -> bool:
        spare = [
            (one.used_ns, key)
            for key, one in self._channels.items()
            if not one.is_kept and not one.waiting and now_ns - one.used_ns > _SPARE_NS
        ]
        if not spare:
            return False
        self._close(min(spare)[1])
        return True

    def _push(self, one: _Open, now_ns: int) -> int:
        sent = 0
        while one.waiting:
            reply, deadline_ns = one.waiting[0]
            outcome = self._offer(one.publication, reply)
            if outcome == "sent":
                self._counters.answers.add()
                sent += 1
            elif now_ns > deadline_ns:
                self._counters.unsent["unheard"].add()
            else:
                break
            one.waiting.popleft()
            self._bytes -= len(reply.message)
        return sent

    def _offer(self, publication: Publication, reply: Reply) -> str:
        most = publication.max_message_length
        if most is None:
            return "not_connected"
        if len(reply.message) <= most:
            return publication.offer(reply.message)
        outcome = publication.offer(too_large(reply.request_id, len(reply.message), most))
        if outcome == "sent":
            self._counters.errors.add()
        return outcome

    def _close(self, key: tuple[str, int]) -> None:
        one = self._channels.pop(key)
        self._bytes -= sum(len(reply.message) for reply, _ in one.waiting)
        one.publication.close()


# A question about everything takes milliseconds: a few a turn, so that no duty cycle stands still.
_QUESTIONS_A_TURN: Final = 16


class DiscoveryProvider:
    """Answers for an index."""

    def __init__(
        self,
        conductor: _native.Conductor,
        index: DiscoveryIndex,
        settings: ProviderSettings,
        counters: DiscoveryCounters,
        *,
        reserved: frozenset[int] = frozenset(),
        now_ns: int,
    ) -> None:
        self.index = index
        self.counters = counters
        counters.streams.bind(lambda: len(index))
        self._questions = RequestQueue(index, settings, counters, reserved=reserved, now_ns=now_ns)
        self._responses = ResponsePublisher(
            lambda channel, stream_id: _native.Publication(conductor, channel, stream_id),
            counters,
            most=settings.max_channels,
            idle_ns=settings.channel_idle_ns,
            now_ns=now_ns,
        )
        self._responses.keep(IPC, RESPONSE_STREAM_ID, now_ns)

    def accept(self, message: bytes, now_ns: int) -> bool:
        """Takes what is of discovery's schema; everything else is somebody else's."""
        if not is_discovery(message):
            return False
        self._questions.put(message, now_ns)
        return True

    def do_work(self, now_ns: int) -> int:
        work = 0
        for reply in self._questions.take(now_ns, _QUESTIONS_A_TURN):
            self._responses.send(reply, now_ns)
            work += 1
        return work + self._responses.do_work(now_ns)

    def close(self) -> None:
        self._responses.close()
