"""A provider of discovery at work: questions in, answers out. A driver and a registry both have one.

One thread owns it: the one whose duty cycle calls `do_work`.
"""

from __future__ import annotations

from typing import Final

from .. import _native
from .config import RESPONSE_STREAM_ID, ProviderSettings
from .counters import DiscoveryCounters
from .endpoints import IPC
from .index import DiscoveryIndex
from .questions import Questions, is_discovery
from .responses import Responses

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
        self._questions = Questions(index, settings, counters, reserved=reserved, now_ns=now_ns)
        self._responses = Responses(
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
