"""What a supervisor can be told by file and environment: `[supervisor]` and `[[supervisor.rules]]`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final, Literal

from ..monitor.model import Condition
from ..runtime.config import DurationNs, IdRange, parse_duration, setting, settings, table

Action = Literal["limit", "redirect", "flag", "reconfigure"]
MAX_RATE_HZ: Final = 0xFFFF_FFFE
FALLBACK_SCHEMES: Final = ("bridge://", "aeron:udp?")
_UNITS: Final = {"drops": "frames a second", "staleness": "s", "latency": "s", "backlog": "frames"}


def _positive(value: float) -> str | None:
    return None if 0 <= value < 1e15 else "use a number from 0 on"


def _name_fault(text: str) -> str | None:
    return None if text and text.isprintable() and len(text) <= 64 else "use 1 to 64 visible characters"


def fallback_fault(uri: str) -> str | None:
    """Why a consumer cannot be sent there."""
    if not uri or (uri.startswith(FALLBACK_SCHEMES) and uri.isascii() and uri.isprintable()):
        return None
    return "use bridge://… or aeron:udp?…: others are refused by consumers (wire §10.1.3)"


@table
class Rule:
    """When something lasts, something is done; when it is over for long enough, that is undone."""

    name: str = setting("What it is called in decisions.", check=_name_fault)
    when: Condition = setting(
        "What is looked at: `drops` (frames a second that a consumer loses), `staleness` (seconds without a "
        "new frame of a stream), `latency` (p99 of a consumer, in seconds), `backlog` (frames that a "
        "consumer is behind its producer)."
    )
    above: float = setting("More than this is too much.", check=_positive)
    for_ns: DurationNs = setting(
        "It must be too much for so long.", default=parse_duration("5s"), maximum=parse_duration("1d")
    )
    below: float | None = setting("Good again is this or less. None: half of `above`.", default=None)
    clear_for_ns: DurationNs = setting(
        "It must be good for so long before it is undone.",
        default=parse_duration("10s"),
        maximum=parse_duration("1d"),
    )
    cool_down_ns: DurationNs = setting(
        "After it was undone, nothing is done for so long.",
        default=parse_duration("30s"),
        maximum=parse_duration("7d"),
    )
    then: Action = setting(
        "What is done: `limit` (the consumer gets at most `max_rate_hz`), `redirect` (its frames come by "
        "`fallback_uri`), `flag` (it is only said), `reconfigure` (a service is told: `service`, `key`, "
        "`value`)."
    )
    streams: tuple[IdRange, ...] = setting("Which streams it is for. Empty: all.", default=())
    consumers: tuple[int, ...] = setting("Which consumers it is for. Empty: all.", default=())
    max_rate_hz: int = setting("For `limit`.", default=0, minimum=0, maximum=MAX_RATE_HZ)
    fallback_uri: str = setting("For `redirect`.", default="", check=fallback_fault)
    service: str = setting("For `reconfigure`: NAME or NAME:INSTANCE of the service.", default="")
    key: str = setting("For `reconfigure`: a property, or a command with its brackets.", default="")
    value: str = setting("For `reconfigure`: the value, or the command's arguments as JSON.", default="")

    @property
    def good(self) -> float:
        return self.above / 2 if self.below is None else self.below

    @property
    def unit(self) -> str:
        return _UNITS[self.when]

    @property
    def is_of_consumers(self) -> bool:
        return self.when != "staleness"

    def has(self, stream_id: int, consumer_id: int | None) -> bool:
        in_streams = not self.streams or any(stream_id in one for one in self.streams)
        return in_streams and (not self.consumers or consumer_id is None or consumer_id in self.consumers)

    def faults(self) -> Iterator[str]:
        if self.below is not None and not 0 <= self.below <= self.above:
            yield f"rule {self.name!r}: below is at most above, or it would never rest"
        if self.then == "limit" and not self.max_rate_hz:
            yield f"rule {self.name!r}: limit needs max_rate_hz, as in 5"
        if self.then == "redirect" and not self.fallback_uri:
            yield f"rule {self.name!r}: redirect needs a fallback_uri, as in bridge://…"
        if self.then == "reconfigure" and not (self.service and self.key):
            yield f"rule {self.name!r}: reconfigure needs service and key, as in 'camera' and 'exposure'"
        if self.then in ("limit", "redirect") and not self.is_of_consumers:
            yield f"rule {self.name!r}: {self.then} is for consumers; a stale stream can be flagged"


@settings("supervisor")
class SupervisorSettings:
    """Watches a system, and steers its consumers by rules."""

    rules: tuple[Rule, ...] = setting("What is done when.", default=(), live=True)
    look_ns: DurationNs = setting(
        "How often rules are judged.",
        default=parse_duration("1s"),
        minimum=parse_duration("50ms"),
        maximum=parse_duration("1min"),
    )
    max_streams: int = setting("Most streams that are kept in mind.", default=20_000, minimum=1)
    max_consumers: int = setting("Most consumers.", default=100_000, minimum=1)

    def check(self) -> Iterator[tuple[str, str]]:
        for name, count in Counter(one.name for one in self.rules).items():
            if count > 1:
                yield "rules", f"rule {name!r} is there {count} times"
        for one in self.rules:
            for fault in one.faults():
                yield "rules", fault
