"""What a driver counts. Six of them stand among the media driver's own."""

from __future__ import annotations

from typing import Final

from ..runtime.counters import CounterSet, counter, counters_by, gauge
from ..sbe.wire import ResponseCode

UNUSABLE: Final = ("short", "template", "version", "feature", "malformed", "unanswerable")
"""Why a request could not be used. `unanswerable`: not even its correlation id could be read."""


class DriverCounters(CounterSet, name="driver"):
    """What a driver has seen and done."""

    streams = gauge("Streams that have files.", unit="streams", aeron=True)
    leases = gauge("Leases in force.", unit="leases", aeron=True)
    attaches = counter("Attaches that were granted.", unit="requests", aeron=True)
    rejects = counters_by(
        "code",
        [code.name.lower() for code in ResponseCode if code is not ResponseCode.OK],
        "Requests that were not granted.",
        unit="requests",
        aeron=True,
    )
    expired = counter("Leases that ended without a word.", unit="leases", aeron=True)
    revoked = counter("Leases that were taken back.", unit="leases", aeron=True)
    detached = counter("Leases that were given back.", unit="leases")
    deaths = counter("Producers whose end was seen by their lock.", unit="producers")
    keepalives = counter("Keepalives of leases in force.", unit="messages")
    strays = counter("Keepalives that match no lease.", unit="messages")
    repeats = counter("Requests that came again.", unit="requests")
    unusable = counters_by("reason", UNUSABLE, "Requests that could not be used.", unit="requests")
    foreign = counter("Messages on the control stream that are not for a driver.", unit="messages")
    before_start = counter("Messages that were sent before the driver was there.", unit="messages")
    epochs = counter("Epochs that were announced.", unit="epochs")
    failures = counter("Times that files could not be made.", unit="times")
    bytes = gauge("What all files take, old ones that are not yet gone included.", unit="bytes")
    unsent = counter("Messages dropped because nobody took them in time.", unit="messages")
