"""The counters of a bridge instance. Frames are counted natively, by mapping."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from .. import _native
from ..runtime.counters import CounterSet, counter, counters_by, gauge

MESSAGE_KINDS: Final = ("metadata", "qos", "progress", "traces")
"""Kinds of forwarded messages."""


class BridgeCounters(CounterSet, name="bridge"):
    """Frames and messages of a bridge instance."""

    sent = counter("Frames sent completely.", unit="frames", aeron=True)
    delivered = counter("Frames committed to local shared memory.", unit="frames", aeron=True)
    dropped = counter("Frames not sent, or received incompletely.", unit="frames", aeron=True)
    bytes = counter("Payload bytes of frames sent and delivered.", unit="bytes", aeron=True)
    mappings = gauge("Mappings of this instance.", unit="mappings")
    announces = counter("Announces forwarded.", unit="messages")
    forwarded = counters_by("kind", MESSAGE_KINDS, "Messages forwarded.", unit="messages")
    unforwarded = counters_by("kind", MESSAGE_KINDS, "Messages that no subscriber received.", unit="messages")
    invalid = counters_by(
        "kind", ("announce", "metadata", "ledger", "control"), "Invalid messages.", unit="messages"
    )
    attaches = counter("Destinations attached.", unit="attaches")
    refusals = counter("Destinations refused by the driver.", unit="attaches")

    def count_forwarded(self, kind: str, is_sent: bool) -> None:
        """Counts a message of a kind: forwarded, or not."""
        (self.forwarded if is_sent else self.unforwarded)[kind].add()


class FrameTotals(NamedTuple):
    """Frames, payload bytes and dropped frames of a sender or receiver."""

    frames: int
    nbytes: int
    dropped: int


def sum_totals(totals: Iterable[_native.BridgeTotals]) -> FrameTotals:
    """The sum of the totals of native senders or receivers."""
    frames = nbytes = dropped = 0
    for each in totals:
        frames, nbytes, dropped = frames + each.frames, nbytes + each.nbytes, dropped + each.dropped
    return FrameTotals(frames, nbytes, dropped)
