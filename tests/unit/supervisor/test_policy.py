"""Policy: rules act on lasting values only, with hysteresis and a rest, whatever the values are."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tensorpool.monitor.model import Condition
from tensorpool.monitor.snapshot import ConsumerView, Snapshot, StreamState, StreamView
from tensorpool.supervisor.config import Rule
from tensorpool.supervisor.policy import Decision, Policy, Target

S = 1_000_000_000
NO_MANUAL: frozenset[tuple[int, int]] = frozenset()


def rule(**fields: Any) -> Rule:
    defaults = {
        "name": "slow",
        "when": "drops",
        "above": 10.0,
        "below": 2.0,
        "for_ns": 3 * S,
        "clear_for_ns": 5 * S,
        "cool_down_ns": 20 * S,
        "then": "limit",
        "max_rate_hz": 5,
    }
    return Rule(**{**defaults, **fields})


def consumer(drops: float | None, **more: Any) -> ConsumerView:
    defaults: dict[str, Any] = {
        "stream_id": 5,
        "consumer_id": 7,
        "epoch": 1,
        "last_seq": 1,
        "mode": "stream",
        "report_age_ns": 0,
        "rate_hz": None,
        "drops_gap": 0,
        "drops_late": 0,
        "dropped": {},
        "dropped_per_s": drops,
        "backlog": 0,
    }
    return ConsumerView(**{**defaults, **more})


class SnapshotView(Snapshot):
    """A snapshot with the values of its consumers."""

    def values(self, condition: Condition) -> Iterator[tuple[Target, float | None]]:
        for stream in self.streams:
            for one in stream.consumers:
                value = one.dropped_per_s if condition == "drops" else one.backlog
                yield (one.stream_id, one.consumer_id), value


def system(*consumers: ConsumerView, stream_id: int = 5) -> SnapshotView:
    stream = StreamView(
        stream_id=stream_id,
        name="",
        summary="",
        tags=(),
        data_source_id=None,
        state=StreamState.LIVE,
        epoch=1,
        epochs=1,
        layout_version=1,
        nslots=8,
        pools=(),
        nbytes=0,
        announce_age_ns=0,
        activity_age_ns=None,
        producer=None,
        consumers=consumers,
        dropped={},
        latency=None,
        sources=(),
        derived=(),
    )
    return SnapshotView(0, streams=(stream,))


def run_policy(policy: Policy, values: list[float | None], start: int = 0) -> list[tuple[int, Decision]]:
    """The decisions for one value a second, with their times."""
    decisions = []
    for second, value in enumerate(values, start):
        view = system(consumer(value))
        decisions += [(second, decision) for decision in policy.evaluate(view, second * S, NO_MANUAL)]
    return decisions


def test_rule_acts_on_lasting_values_only_and_gives_its_reason() -> None:
    policy = Policy((rule(),))
    assert run_policy(policy, [50, 50, 50, 1, 50, 50, 50]) == []
    [(second, decision)] = run_policy(policy, [50], start=7)
    assert (second, decision.action, decision.stream_id, decision.consumer_id) == (7, "limit", 5, 7)
    assert decision.max_rate_hz == 5
    assert decision.reason == "drops 50 frames a second, above 10 for 3 s"


def test_rule_keeps_its_state_between_the_two_thresholds() -> None:
    policy = Policy((rule(),))
    assert [d.action for _, d in run_policy(policy, [50] * 4)] == ["limit"]
    assert run_policy(policy, [5] * 60, start=4) == []
    assert [(s, d.action) for s, d in run_policy(policy, [2] * 10, start=64)] == [(69, "release")]
    # The rule rests before it acts again.
    assert [(s, d.action) for s, d in run_policy(policy, [50] * 30, start=74)] == [(89, "limit")]


def test_rule_does_not_add_up_interrupted_low_times() -> None:
    policy = Policy((rule(),))
    assert [d.action for _, d in run_policy(policy, [50] * 4)] == ["limit"]
    assert run_policy(policy, [1, 1, 1, 1, 5] * 6, start=4) == []
    assert [(s, d.action) for s, d in run_policy(policy, [1] * 6, start=34)] == [(39, "release")]


def test_rule_forgets_consumers_that_left() -> None:
    policy = Policy((rule(),))
    assert [d.action for _, d in run_policy(policy, [50] * 4)] == ["limit"]
    assert policy.evaluate(SnapshotView(0), 4 * S, NO_MANUAL) == []
    assert policy.active == []
    # A consumer with the same id is a new one: no rest applies to it.
    assert [(s, d.action) for s, d in run_policy(policy, [50] * 4, start=5)] == [(8, "limit")]


def test_missing_values_are_neither_high_nor_low() -> None:
    policy = Policy((rule(),))
    assert run_policy(policy, [50, 50, 50, None, 50, 50]) == []
    assert [d.action for _, d in run_policy(policy, [50] * 2, start=6)] == ["limit"]
    assert run_policy(policy, [1, 1, 1, 1, None, 1, 1, 1, 1, 1], start=8) == []


def test_rules_do_not_apply_to_consumers_with_manual_orders() -> None:
    policy = Policy((rule(),))
    manual = frozenset({(5, 7)})
    for second in range(30):
        assert policy.evaluate(system(consumer(50)), second * S, manual) == []


def test_restarted_supervisor_undoes_actions_of_its_predecessor() -> None:
    policy = Policy((rule(),))
    forced = system(consumer(0, mode="rate_limited", requested_limit=False))
    decisions = [one for second in range(7) for one in policy.evaluate(forced, second * S, NO_MANUAL)]
    assert [decision.action for decision in decisions] == ["release"]
    # A consumer that requested the limit itself is not under an order.
    policy = Policy((rule(),))
    requested = system(consumer(0, mode="rate_limited", requested_limit=True))
    assert [one for second in range(7) for one in policy.evaluate(requested, second * S, NO_MANUAL)] == []


def test_set_rules_undoes_removed_rules_and_keeps_equal_ones() -> None:
    kept, gone = rule(name="kept"), rule(name="gone", then="flag")
    policy = Policy((kept, gone))
    assert {d.by for _, d in run_policy(policy, [50] * 4)} == {"kept", "gone"}
    assert [(d.action, d.by) for d in policy.set_rules((kept,))] == [("unflag", "gone")]
    assert policy.active == [("kept", 5, 7)]
    assert [(d.action, d.by) for d in policy.set_rules(())] == [("release", "kept")]


def test_rules_apply_to_their_consumers_only() -> None:
    policy = Policy((rule(consumers=(8,)), rule(name="b", when="backlog", then="flag")))
    for second in range(10):
        decisions = policy.evaluate(system(consumer(50, backlog=90)), second * S, NO_MANUAL)
        assert {d.by for d in decisions} <= {"b"}
    assert policy.active == [("b", 5, 7)]


def test_invalid_rules_have_faults() -> None:
    invalid = [
        rule(max_rate_hz=0),
        rule(then="redirect"),
        rule(then="reconfigure"),
        rule(when="staleness"),
        rule(below=20.0),
    ]
    for invalid_rule in invalid:
        assert list(invalid_rule.faults()), invalid_rule
    assert not list(rule().faults())


@given(st.lists(st.one_of(st.none(), st.floats(0, 100)), max_size=200))
def test_rule_never_alternates_faster_than_its_times(values: list[float | None]) -> None:
    """At least the rule's times pass between an action and its undoing, and before the next action."""
    policy, limit = Policy((rule(),)), rule()
    decisions = run_policy(policy, values)
    assert [d.action for _, d in decisions] == (["limit", "release"] * 200)[: len(decisions)]
    for (before, first), (after, _) in pairwise(decisions):
        minimum_ns = limit.clear_for_ns if first.action == "limit" else limit.cool_down_ns
        assert (after - before) * S >= minimum_ns
    for second, decision in decisions:
        if decision.action == "limit":
            lasting = values[second - 3 : second + 1]
            assert all(value is not None and value > limit.above for value in lasting)
