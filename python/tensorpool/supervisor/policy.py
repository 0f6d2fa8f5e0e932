"""Policy: snapshots and the time in, decisions with their reasons out. Pure.

A rule acts when something was too much without a break for its time, undoes it when it was good without a
break for another, and then rests for a while: nothing flickers, whatever the figures do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from .config import Rule
from .views import ConsumerView, Snapshot, StreamView

Target = tuple[str, int, int | None]
"""Rule, stream, consumer; a rule of streams has no consumer."""


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


@dataclass(slots=True)
class _Standing:
    """How a rule stands to one target."""

    is_active: bool = False
    bad_since_ns: int | None = None
    good_since_ns: int | None = None
    rests_until_ns: int = 0


class Policy:
    """The rules, and how each stands to each stream or consumer that is there."""

    def __init__(self, rules: tuple[Rule, ...] = ()) -> None:
        self._rules = rules
        self._standing: dict[Target, _Standing] = {}

    @property
    def active(self) -> list[Target]:
        return [target for target, one in self._standing.items() if one.is_active]

    def set_rules(self, rules: tuple[Rule, ...]) -> list[Decision]:
        """Other rules from now on: what one did that is gone or has changed is undone."""
        kept = {one.name for one in rules if one in self._rules}
        undone = []
        for (name, stream_id, consumer_id), standing in list(self._standing.items()):
            if name in kept:
                continue
            rule = next(one for one in self._rules if one.name == name)
            if standing.is_active and (undo := _undo(rule, stream_id, consumer_id, "the rule is gone")):
                undone.append(undo)
            del self._standing[name, stream_id, consumer_id]
        self._rules = rules
        return undone

    def judge(self, snapshot: Snapshot, now_ns: int, manual: frozenset[tuple[int, int]]) -> list[Decision]:
        """What is to be done now. Consumers that somebody steers by hand are left alone."""
        decisions: list[Decision] = []
        there: set[Target] = set()
        for rule in self._rules:
            for stream, consumer, figure in _figures(rule, snapshot):
                consumer_id = None if consumer is None else consumer.consumer_id
                target = (rule.name, stream.stream_id, consumer_id)
                there.add(target)
                if consumer_id is not None and (stream.stream_id, consumer_id) in manual:
                    self._standing.pop(target, None)
                    continue
                standing = self._standing.get(target)
                if standing is None:
                    standing = self._standing[target] = _Standing(is_active=_is_done(rule, consumer))
                decision = _step(rule, standing, stream.stream_id, consumer_id, figure, now_ns)
                if decision is not None:
                    decisions.append(decision)
        for target in self._standing.keys() - there:
            # Who has left takes its orders along.
            del self._standing[target]
        return decisions


def _figures(
    rule: Rule, snapshot: Snapshot
) -> Iterator[tuple[StreamView, ConsumerView | None, float | None]]:
    for stream in snapshot.streams:
        if not rule.is_of_consumers:
            if rule.has(stream.stream_id, None):
                producer = stream.producer
                yield stream, None, None if producer is None else producer.quiet_ns / 1e9
            continue
        for one in stream.consumers:
            if rule.has(stream.stream_id, one.consumer_id):
                yield stream, one, _figure(rule, one)


def _figure(rule: Rule, one: ConsumerView) -> float | None:
    match rule.when:
        case "drops":
            return one.dropped_per_s
        case "latency":
            return None if one.latency is None else one.latency.p99_ns / 1e9
        case _:
            return one.backlog


def _is_done(rule: Rule, consumer: ConsumerView | None) -> bool:
    """Whether it is done already: by this rule, before the supervisor was started anew."""
    if consumer is None:
        return False
    if rule.then == "limit":
        return consumer.is_forced
    return rule.then == "redirect" and consumer.fallback_uri == rule.fallback_uri


def _step(
    rule: Rule,
    standing: _Standing,
    stream_id: int,
    consumer_id: int | None,
    figure: float | None,
    now_ns: int,
) -> Decision | None:
    # Silence is neither good nor bad: what is running goes on, nothing begins.
    if figure is None:
        standing.bad_since_ns = standing.good_since_ns = None
        return None
    if standing.is_active:
        if figure > rule.good:
            standing.good_since_ns = None
            return None
        standing.good_since_ns = now_ns if standing.good_since_ns is None else standing.good_since_ns
        if now_ns - standing.good_since_ns < rule.clear_for_ns:
            return None
        standing.is_active, standing.good_since_ns = False, None
        standing.rests_until_ns = now_ns + rule.cool_down_ns
        good = f"{rule.when} {figure:.3g} {rule.unit} for {rule.clear_for_ns / 1e9:g} s"
        return _undo(rule, stream_id, consumer_id, good)
    if figure <= rule.above:
        standing.bad_since_ns = None
        return None
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
