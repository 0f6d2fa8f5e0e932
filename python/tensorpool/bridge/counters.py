"""What a bridge instance counts. Frames are counted natively, by mapping; here are the words around them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ..runtime.counters import CounterSet, counter, counters_by, gauge

MESSAGES: Final = ("metadata", "qos", "progress")


class BridgeCounters(CounterSet, name="bridge"):
    """What a bridge has carried."""

    sent = counter("Frames sent whole.", unit="frames", aeron=True)
    delivered = counter("Frames put into local memory.", unit="frames", aeron=True)
    dropped = counter(
        "Frames that were not sent, or of which chunks came and no frame.", unit="frames", aeron=True
    )
    bytes = counter("Payload bytes of frames sent and delivered.", unit="bytes", aeron=True)
    mappings = gauge("Mappings of this instance.", unit="mappings")
    announces = counter("Announces forwarded.", unit="messages")
    forwarded = counters_by("kind", MESSAGES, "Messages carried on.", unit="messages")
    unforwarded = counters_by("kind", MESSAGES, "Messages that nobody took.", unit="messages")
    unusable = counters_by(
        "kind", ("announce", "metadata", "ledger", "word"), "Not readable.", unit="messages"
    )
    attaches = counter("Destinations that were taken up.", unit="attaches")
    refusals = counter("Destinations that were refused.", unit="attaches")


def sum_each(sums: Iterable[tuple[int, int, int]]) -> tuple[int, int, int]:
    """Frames, bytes and drops of all native ends."""
    frames, size, dropped = zip(*sums, (0, 0, 0), strict=True)
    return sum(frames), sum(size), sum(dropped)
