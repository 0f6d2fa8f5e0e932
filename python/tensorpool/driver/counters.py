"""Counters of the driver. Six of them are also Aeron counters."""

from __future__ import annotations

from typing import Final

from ..runtime.counters import CounterSet, counter, counters_by, gauge
from ..sbe.wire import ResponseCode

INVALID_REASONS: Final = ("short", "template", "version", "feature", "malformed", "unanswerable")
"""Why a request is invalid. `unanswerable`: not even its correlation id could be read."""


class DriverCounters(CounterSet, name="driver"):
    """Counters of one driver. Their names are part of the output of `driver status`."""

    streams = gauge("Streams that have files.", unit="streams", aeron=True)
    leases = gauge("Leases in force.", unit="leases", aeron=True)
    attaches = counter("Granted attach requests.", unit="requests", aeron=True)
    rejects = counters_by(
        "code",
        [code.name.lower() for code in ResponseCode if code is not ResponseCode.OK],
        "Refused requests.",
        unit="requests",
        aeron=True,
    )
    expired = counter("Leases that ended without a detach.", unit="leases", aeron=True)
    revoked = counter("Revoked leases.", unit="leases", aeron=True)
    detached = counter("Leases ended by a detach.", unit="leases")
    dead_producers = counter("Producers whose released lock showed that they had ended.", unit="producers")
    keepalives = counter("Keepalives of leases in force.", unit="messages")
    strays = counter("Keepalives without a matching lease.", unit="messages")
    repeats = counter("Repeated requests.", unit="requests")
    invalid = counters_by("reason", INVALID_REASONS, "Invalid requests.", unit="requests")
    foreign = counter("Messages on the control stream that are not for a driver.", unit="messages")
    before_start = counter("Messages sent before the driver started.", unit="messages")
    postponed = counter(
        "Attach requests that were not handled before their repetition, because there were too many.",
        unit="requests",
    )
    unanswered = counter("Invalid messages without an answer, because there were too many.", unit="messages")
    lapsed = counter("Reserved leases that ended because their request was not repeated.", unit="leases")
    epochs = counter("Announced epochs.", unit="epochs")
    damaged = counter(
        "Epochs that ended because a region was truncated or its superblock overwritten.", unit="epochs"
    )
    failures = counter("Failed creations of files.", unit="times")
    bytes = gauge("Size of all files, including old files that are not removed yet.", unit="bytes")
    blocked = counter("Times that a client blocked the control stream for half a second.", unit="times")
    full = counter(
        "Times that a subscription without polls kept the control stream full for half a second.",
        unit="times",
    )
    unsent = counter("Messages dropped because the stream did not accept them in time.", unit="messages")
