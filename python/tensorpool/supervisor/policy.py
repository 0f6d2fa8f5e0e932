"""Policy: snapshots and the time in, decisions with their reasons out. Pure.

A rule acts when something was too much without a break for its time, undoes it when it was good without a
break for another, and then rests for a while: nothing flickers, whatever the figures do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

from ..monitor.model import Condition
from ..monitor.snapshot import ConsumerView
from .config import Rule

Who = tuple[int, int | None]
"""Stream and consumer; a rule of streams has no consumer."""
Target = tuple[str, int, int | None]
"""The same, with the rule before it."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done to whom, and why."""

    action: Literal["limit", "redirect", "flag", "reconfigure", "release", "unflag"]
    by: str
    """The rule, or `manual`."""
    stream_id: int
    consumer_id: int | None
    reason: str
    max_rate_hz: int = 0
    fallback_uri: str = ""
    service: str = ""
    key: str = ""
    value: str = ""


class PolicyView(Protocol):
    """What rules look at."""

    def figures(self, when: Condition) -> Iterable[tuple[Who, float | None]]:
        """Of each stream, or of each consumer; None where nobody has told."""

    def consumer(self, stream_id: int, consumer_id: int) -> ConsumerView | None: ...


@dataclass(slots=True)
class _RuleState:
    """How a rule stands to one target."""

    is_active: bool = False
    bad_since_ns: int | None = None
    good_since_ns: int | None = None
    rests_until_ns: int = 0


class Policy:
    """The rules, and how each stands to each stream or consumer that is there."""

    def __init__(self, rules: tuple[Rule, ...] = ()) -> None:
        self._rules = rules
        self._standing: dict[str, dict[Who, _RuleState]] = {}
        """By rule."""

    @property
    def active(self) -> list[Target]:
        return [
            (name, *who)
            for name, there in self._standing.items()
            for who, one in there.items()
            if one.is_active
        ]

    def set_rules(self, rules: tuple[Rule, ...]) -> list[Decision]:
        """Other rules from now on: what one did that is gone or has changed is undone."""
        kept = {one.name for one in rules if one in self._rules}
        undone = []
        for rule in self._rules:
            if rule.name in kept:
                continue
            for who, standing in self._standing.pop(rule.name, {}).items():
                if standing.is_active and (undo := _undo(rule, *who, "the rule is gone")):
                    undone.append(undo)
        self._rules = rules
        return undone

    def judge(self, sight: PolicyView, now_ns: int, manual: frozenset[tuple[int, int]]) -> list[Decision]:
        """What is to be done now. Consumers that somebody steers by hand are left alone."""
        decisions: list[Decision] = []
        for rule in self._rules:
            is_for_all = not rule.streams and not rule.consumers
            before = self._standing.get(rule.name, {})
            # Who has left takes its orders along.
            there = self._standing[rule.name] = {}
            for who, figure in sight.figures(rule.when):
                if who in manual or not (is_for_all or rule.has(*who)):
                    continue
                standing = before.get(who)
                if standing is None:
                    standing = _RuleState(is_active=_is_done(rule, sight, *who))
                there[who] = standing
                if not standing.is_active and (figure is None or figure <= rule.above):
                    # As nearly all are: thousands, at each look.
                    standing.bad_since_ns = None
                elif decision := _step(rule, standing, *who, figure, now_ns):
                    decisions.append(decision)
        return decisions


def _is_done(rule: Rule, sight: PolicyView, stream_id: int, consumer_id: int | None) -> bool:
    """Whether it is done already: by this rule, before the supervisor was started anew."""
    consumer = None if consumer_id is None else sight.consumer(stream_id, consumer_id)
    if consumer is None:
        return False
    if rule.then == "limit":
        return consumer.is_forced
    return rule.then == "redirect" and consumer.fallback_uri == rule.fallback_uri


def _step(
    rule: Rule,
    standing: _RuleState,
    stream_id: int,
    consumer_id: int | None,
    figure: float | None,
    now_ns: int,
) -> Decision | None:
    """Where something acts already, or is too much."""
    if standing.is_active:
        # Silence is neither good nor bad: what is running goes on.
        if figure is None or figure > rule.good:
            standing.good_since_ns = None
            return None
        standing.good_since_ns = now_ns if standing.good_since_ns is None else standing.good_since_ns
        if now_ns - standing.good_since_ns < rule.clear_for_ns:
            return None
        standing.is_active, standing.good_since_ns = False, None
        standing.rests_until_ns = now_ns + rule.cool_down_ns
        good = f"{rule.when} {figure:.3g} {rule.unit} for {rule.clear_for_ns / 1e9:g} s"
        return _undo(rule, stream_id, consumer_id, good)
    assert figure is not None, "silence is never too much"
    standing.bad_since_ns = now_ns if standing.bad_since_ns is None else standing.bad_since_ns
    if now_ns - standing.bad_since_ns < rule.for_ns or now_ns < standing.rests_until_ns:
        return None
    standing.is_active, standing.bad_since_ns = True, None
    return Decision(
        rule.then,
        rule.name,
        stream_id,
        consumer_id,
        f"{rule.when} {figure:.3g} {rule.unit}, above {rule.above:g} for {rule.for_ns / 1e9:g} s",
        max_rate_hz=rule.max_rate_hz if rule.then == "limit" else 0,
        fallback_uri=rule.fallback_uri if rule.then == "redirect" else "",
        service=rule.service,
        key=rule.key,
        value=rule.value,
    )


def _undo(rule: Rule, stream_id: int, consumer_id: int | None, why: str) -> Decision | None:
    """What a service was told stays: nobody knows what it was before."""
    if rule.then == "reconfigure":
        return None
    action: Literal["unflag", "release"] = "unflag" if rule.then == "flag" else "release"
    return Decision(action, rule.name, stream_id, consumer_id, why)
