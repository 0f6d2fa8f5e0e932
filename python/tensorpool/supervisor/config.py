"""Settings of a supervisor: `[supervisor]` and `[[supervisor.rules]]`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final, Literal

from .. import _native
from ..monitor.model import Condition
from ..runtime.config import DurationNs, IdRange, parse_duration, setting, settings, table
from ..units import MAX_U32

Action = Literal["limit", "redirect", "flag", "reconfigure"]
MAX_RATE_HZ: Final = MAX_U32
_UNITS: Final = {"drops": "frames a second", "staleness": "s", "latency": "s", "backlog": "frames"}


def _threshold_fault(value: float) -> str | None:
    return None if 0 <= value < 1e15 else "use a number that is 0 or more"


def _name_fault(text: str) -> str | None:
    return None if text and text.isprintable() and len(text) <= 64 else "use 1 to 64 visible characters"


def fallback_fault(uri: str) -> str | None:
    """Why a consumer cannot use a fallback URI. Consumers refuse the same ones (wire §10.1.3)."""
    if not uri:
        return None
    try:
        _native.parse_fallback_uri(uri)
    except ValueError as error:
        return f"{error}; `tensorpool bridge status --json` has the whole URI of a stream"
    return None if uri.isascii() and uri.isprintable() else "use visible ASCII characters"


@table
class Rule:
    """Acts when a value is too high for a while, and undoes its action when the value is low for a while."""

    name: str = setting("Name of the rule in decisions.", check=_name_fault)
    when: Condition = setting(
        "The value: `drops` (frames a second that a consumer loses), `staleness` (seconds without a new "
        "frame of a stream), `latency` (p99 of a consumer, in seconds), `backlog` (frames that a consumer is "
        "behind its producer; those that a rate limit withholds are among them)."
    )
    above: float = setting("The value is too high if it is above this.", check=_threshold_fault)
    for_ns: DurationNs = setting(
        "The rule acts when the value was too high for this long.",
        default=parse_duration("5s"),
        maximum=parse_duration("1d"),
    )
    below: float | None = setting(
        "The value is low if it is not above this. None: half of `above`.", default=None
    )
    clear_for_ns: DurationNs = setting(
        "The rule undoes its action when the value was low for this long.",
        default=parse_duration("10s"),
        maximum=parse_duration("1d"),
    )
    cool_down_ns: DurationNs = setting(
        "After that, the rule does not act on the same target for this long.",
        default=parse_duration("30s"),
        maximum=parse_duration("7d"),
    )
    then: Action = setting(
        "The action: `limit` (the consumer gets at most `max_rate_hz`), `redirect` (it reads from "
        "`fallback_uri`), `flag` (only a decision is published), `reconfigure` (a command or property is "
        "sent to a service: `service`, `key`, `value`)."
    )
    streams: tuple[IdRange, ...] = setting("The streams that it applies to. Empty: all.", default=())
    consumers: tuple[int, ...] = setting("The consumers that it applies to. Empty: all.", default=())
    max_rate_hz: int = setting("For `limit`: frames a second.", default=0, minimum=0, maximum=MAX_RATE_HZ)
    fallback_uri: str = setting(
        "For `redirect`: where the consumer reads frames.", default="", check=fallback_fault
    )
    service: str = setting("For `reconfigure`: NAME or NAME:INSTANCE of the service.", default="")
    key: str = setting("For `reconfigure`: a property, or a command with its parentheses.", default="")
    value: str = setting("For `reconfigure`: the value, or the command's arguments as JSON.", default="")

    @property
    def low(self) -> float:
        """The value is low up to this."""
        return self.above / 2 if self.below is None else self.below

    @property
    def unit(self) -> str:
        """The unit of the value."""
        return _UNITS[self.when]

    @property
    def is_of_consumers(self) -> bool:
        """Whether the value is of consumers, not of streams."""
        return self.when != "staleness"

    def has(self, stream_id: int, consumer_id: int | None) -> bool:
        """Whether the rule applies to a stream or consumer."""
        in_streams = not self.streams or any(stream_id in id_range for id_range in self.streams)
        return in_streams and (not self.consumers or consumer_id is None or consumer_id in self.consumers)

    def faults(self) -> Iterator[str]:
        """Why the rule is invalid."""
        if self.below is not None and not 0 <= self.below <= self.above:
            yield f"rule {self.name!r}: below must not be above `above`, or the action would never end"
        if self.then == "limit" and not self.max_rate_hz:
            yield f"rule {self.name!r}: limit needs max_rate_hz, as in 5"
        if self.then == "redirect" and not self.fallback_uri:
            yield f"rule {self.name!r}: redirect needs a fallback_uri, as in bridge://…"
        if self.then == "reconfigure" and not (self.service and self.key):
            yield f"rule {self.name!r}: reconfigure needs service and key, as in 'camera' and 'exposure'"
        if self.then in ("limit", "redirect") and not self.is_of_consumers:
            yield f"rule {self.name!r}: {self.then} needs a value of consumers; use flag for staleness"


@settings("supervisor")
class SupervisorSettings:
    """Monitors a system, and controls its consumers by rules."""

    rules: tuple[Rule, ...] = setting("The rules.", default=(), live=True)
    evaluation_period_ns: DurationNs = setting(
        "Period of the evaluation of rules.",
        default=parse_duration("1s"),
        minimum=parse_duration("50ms"),
        maximum=parse_duration("1min"),
    )
    max_streams: int = setting("Maximum of streams in the model.", default=20_000, minimum=1)
    max_consumers: int = setting("Maximum of consumers in the model.", default=100_000, minimum=1)

    def check(self) -> Iterator[tuple[str, str]]:
        """The faults of all rules."""
        for name, count in Counter(rule.name for rule in self.rules).items():
            if count > 1:
                yield "rules", f"rule {name!r} is listed {count} times"
        for rule in self.rules:
            for fault in rule.faults():
                yield "rules", fault
