"""What a provider of discovery counts."""

from __future__ import annotations

from typing import Final

from ..runtime.counters import CounterSet, counter, counters_by, gauge

UNHEARD: Final = ("malformed", "large", "invalid", "regressed", "full")
"""Why an announce or metadata was passed over. `invalid`: its pools do not fit its ring. `regressed`: of an
older epoch than the one that is alive."""
UNUSABLE: Final = ("malformed", "version", "template")
"""Why a message on the request stream is no question."""
REFUSED: Final = ("no_channel", "channel", "stream", "rate", "flood", "busy", "no_room")
"""Why a question was dropped: no response channel, one that is not allowed, a stream that is not; too many of
one client, or of all; too many that wait; no room for another response channel."""
UNSENT: Final = ("unheard", "refused", "full")
"""Why an answer was dropped: nobody listened, Aeron has no such channel, too many waited."""


class DiscoveryCounters(CounterSet, name="discovery"):
    """What a provider has heard, was asked and has said."""

    streams = gauge("Streams that are known.", unit="streams", aeron=True)
    questions = counter("Questions that were answered.", unit="requests", aeron=True)
    results = counter("Streams in all answers.", unit="streams")
    errors = counter("Questions that were answered with an error.", unit="requests")
    answers = counter("Answers that went out.", unit="messages", aeron=True)
    refused = counters_by("reason", REFUSED, "Questions that were dropped.", unit="requests", aeron=True)
    unusable = counters_by("reason", UNUSABLE, "Messages that are no questions.", unit="messages", aeron=True)
    unsent = counters_by("reason", UNSENT, "Answers that were dropped.", unit="messages", aeron=True)
    unheard = counters_by("reason", UNHEARD, "Announces and metadata passed over.", unit="messages")
    foreign = counter("Messages on announce streams that are nobody's here.", unit="messages")
    channels = gauge("Response channels that are open.", unit="channels")
