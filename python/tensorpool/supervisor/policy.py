"""The policy of a supervisor: values of the model and the time in, decisions with their reasons out. Pure.

A rule acts when a value was too high without a break for `for_ns`. It undoes its action when the value was
low without a break for `clear_for_ns`, and then rests for `cool_down_ns`: actions do not alternate quickly,
however the values change.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from ..monitor.model import Condition
from ..monitor.snapshot import ConsumerView
from .config import Rule

DecidedAction: TypeAlias = Literal["limit", "redirect", "flag", "reconfigure", "release", "unflag"]
Target: TypeAlias = tuple[int, int | None]
"""Stream id and consumer id; the target of a rule about streams has no consumer."""
RuleTarget: TypeAlias = tuple[str, int, int | None]
"""Name of a rule, stream id and consumer id."""


@dataclass(frozen=True, slots=True)
class Decision:
    """An action on a stream or consumer, with its reason."""

    action: DecidedAction
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
    """The part of a model that rules need."""

    def values(self, condition: Condition) -> Iterable[tuple[Target, float | None]]:
        """The value of each stream or consumer; None where no report has one."""
        ...

    def consumer(self, stream_id: int, consumer_id: int) -> ConsumerView | None:
        """The consumer; None if it has left."""


@dataclass(slots=True)
class _RuleState:
    """The state of a rule for one target."""

    is_active: bool = False
    high_since_ns: int | None = None
    low_since_ns: int | None = None
    rests_until_ns: int = 0


class Policy:
    """The rules, with their state for each present stream or consumer."""

    def __init__(self, rules: tuple[Rule, ...] = ()) -> None:
        self._rules = rules
        self._states: dict[str, dict[Target, _RuleState]] = {}
        """By the name of the rule."""

    @property
    def active(self) -> list[RuleTarget]:
        """The targets on which a rule acts at the moment."""
        return [
            (name, *target)
            for name, states in self._states.items()
            for target, state in states.items()
            if state.is_active
        ]

    def set_rules(self, rules: tuple[Rule, ...]) -> list[Decision]:
        """Replaces the rules. Returns the decisions that undo actions of removed and changed rules."""
        kept = {rule.name for rule in rules if rule in self._rules}
        decisions = []
        for rule in self._rules:
            if rule.name in kept:
                continue
            for target, state in self._states.pop(rule.name, {}).items():
                if state.is_active and (decision := _undo(rule, *target, "the rule was removed or changed")):
                    decisions.append(decision)
        self._rules = rules
        return decisions

    def evaluate(self, view: PolicyView, now_ns: int, manual: frozenset[tuple[int, int]]) -> list[Decision]:
        """The decisions of all rules. Rules do not apply to `manual`, consumers with a command's order."""
        decisions: list[Decision] = []
        for rule in self._rules:
            is_for_all = not rule.streams and not rule.consumers
            before = self._states.get(rule.name, {})
            # States of targets that are gone are dropped here.
            states = self._states[rule.name] = {}
            for target, value in view.values(rule.when):
                if target in manual or not (is_for_all or rule.has(*target)):
                    continue
                state = before.get(target)
                if state is None:
                    state = _RuleState(is_active=_is_in_force(rule, view, *target))
                states[target] = state
                if not state.is_active and (value is None or value <= rule.above):
                    # The case of nearly all of thousands of targets: no call.
                    state.high_since_ns = None
                elif decision := _step(rule, state, *target, value, now_ns):
                    decisions.append(decision)
        return decisions


def _is_in_force(rule: Rule, view: PolicyView, stream_id: int, consumer_id: int | None) -> bool:
    """Whether the action is already in force, from this rule before a restart of the supervisor."""
    consumer = None if consumer_id is None else view.consumer(stream_id, consumer_id)
    if consumer is None:
        return False
    if rule.then == "limit":
        return consumer.is_forced
    return rule.then == "redirect" and consumer.fallback_uri == rule.fallback_uri


def _step(
    rule: Rule,
    state: _RuleState,
    stream_id: int,
    consumer_id: int | None,
    value: float | None,
    now_ns: int,
) -> Decision | None:
    """Advances the state of a target on which the rule acts, or whose value is too high."""
    if state.is_active:
        # A missing value is neither high nor low: the action stays.
        if value is None or value > rule.low:
            state.low_since_ns = None
            return None
        state.low_since_ns = now_ns if state.low_since_ns is None else state.low_since_ns
        if now_ns - state.low_since_ns < rule.clear_for_ns:
            return None
        state.is_active, state.low_since_ns = False, None
        state.rests_until_ns = now_ns + rule.cool_down_ns
        reason = f"{rule.when} {value:.3g} {rule.unit} for {rule.clear_for_ns / 1e9:g} s"
        return _undo(rule, stream_id, consumer_id, reason)
    assert value is not None, "a missing value is never too high"
    state.high_since_ns = now_ns if state.high_since_ns is None else state.high_since_ns
    if now_ns - state.high_since_ns < rule.for_ns or now_ns < state.rests_until_ns:
        return None
    state.is_active, state.high_since_ns = True, None
    return Decision(
        rule.then,
        rule.name,
        stream_id,
        consumer_id,
        f"{rule.when} {value:.3g} {rule.unit}, above {rule.above:g} for {rule.for_ns / 1e9:g} s",
        max_rate_hz=rule.max_rate_hz if rule.then == "limit" else 0,
        fallback_uri=rule.fallback_uri if rule.then == "redirect" else "",
        service=rule.service,
        key=rule.key,
        value=rule.value,
    )


def _undo(rule: Rule, stream_id: int, consumer_id: int | None, reason: str) -> Decision | None:
    """The opposite action. A reconfigured service keeps its value: the former one is unknown."""
    if rule.then == "reconfigure":
        return None
    action: Literal["unflag", "release"] = "unflag" if rule.then == "flag" else "release"
    return Decision(action, rule.name, stream_id, consumer_id, reason)
