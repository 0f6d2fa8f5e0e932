"""Policy: sustained, with hysteresis and a rest, whatever the figures do."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tensorpool.monitor.model import Condition
from tensorpool.monitor.snapshot import ConsumerView, Snapshot, StreamState, StreamView
from tensorpool.supervisor.config import Rule
from tensorpool.supervisor.policy import Decision, Policy, Who

S = 1_000_000_000
NOBODY: frozenset[tuple[int, int]] = frozenset()


def rule(**fields: Any) -> Rule:
    plain = {
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
    return Rule(**{**plain, **fields})


def consumer(drops: float | None, **more: Any) -> ConsumerView:
    plain: dict[str, Any] = {
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
    return ConsumerView(**{**plain, **more})


class Scene(Snapshot):
    """A snapshot, looked at by rules of consumers."""

    def figures(self, when: Condition) -> Iterator[tuple[Who, float | None]]:
        for one in (one for stream in self.streams for one in stream.consumers):
            yield (one.stream_id, one.consumer_id), one.dropped_per_s if when == "drops" else one.backlog


def system(*consumers: ConsumerView, stream_id: int = 5) -> Scene:
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
        feeds=(),
    )
    return Scene(0, streams=(stream,))


def play(policy: Policy, figures: list[float | None], start: int = 0) -> list[tuple[int, Decision]]:
    """One figure a second; what was decided when."""
    made = []
    for second, figure in enumerate(figures, start):
        made += [(second, one) for one in policy.judge(system(consumer(figure)), second * S, NOBODY)]
    return made


def test_only_what_lasts_leads_to_something_and_it_says_why() -> None:
    policy = Policy((rule(),))
    assert play(policy, [50, 50, 50, 1, 50, 50, 50]) == []
    [(second, decision)] = play(policy, [50], start=7)
    assert (second, decision.action, decision.stream_id, decision.consumer_id) == (7, "limit", 5, 7)
    assert decision.max_rate_hz == 5
    assert decision.reason == "drops 50 frames a second, above 10 for 3 s"


def test_between_good_and_bad_nothing_changes() -> None:
    policy = Policy((rule(),))
    assert [d.action for _, d in play(policy, [50] * 4)] == ["limit"]
    assert play(policy, [5] * 60, start=4) == []
    assert [(s, d.action) for s, d in play(policy, [2] * 10, start=64)] == [(69, "release")]
    # It rests, and begins anew only after that.
    assert [(s, d.action) for s, d in play(policy, [50] * 30, start=74)] == [(89, "limit")]


def test_good_times_with_a_break_do_not_add_up() -> None:
    policy = Policy((rule(),))
    assert [d.action for _, d in play(policy, [50] * 4)] == ["limit"]
    assert play(policy, [1, 1, 1, 1, 5] * 6, start=4) == []
    assert [(s, d.action) for s, d in play(policy, [1] * 6, start=34)] == [(39, "release")]


def test_of_who_has_left_nothing_is_remembered() -> None:
    policy = Policy((rule(),))
    assert [d.action for _, d in play(policy, [50] * 4)] == ["limit"]
    assert policy.judge(Scene(0), 4 * S, NOBODY) == []
    assert policy.active == []
    # Under the same id it is somebody new: it gets the whole time, and no rest stands against it.
    assert [(s, d.action) for s, d in play(policy, [50] * 4, start=5)] == [(8, "limit")]


def test_silence_is_neither_good_nor_bad() -> None:
    policy = Policy((rule(),))
    assert play(policy, [50, 50, 50, None, 50, 50]) == []
    assert [d.action for _, d in play(policy, [50] * 2, start=6)] == ["limit"]
    assert play(policy, [1, 1, 1, 1, None, 1, 1, 1, 1, 1], start=8) == []


def test_who_is_steered_by_hand_is_left_alone() -> None:
    policy = Policy((rule(),))
    by_hand = frozenset({(5, 7)})
    for second in range(30):
        assert policy.judge(system(consumer(50)), second * S, by_hand) == []


def test_a_supervisor_that_was_started_anew_undoes_what_an_earlier_one_did() -> None:
    policy = Policy((rule(),))
    forced = system(consumer(0, mode="rate_limited", wants_limit=False))
    made = [one for second in range(7) for one in policy.judge(forced, second * S, NOBODY)]
    assert [one.action for one in made] == ["release"]
    # One that wants to be slow is nobody's order.
    policy = Policy((rule(),))
    wants = system(consumer(0, mode="rate_limited", wants_limit=True))
    assert [one for second in range(7) for one in policy.judge(wants, second * S, NOBODY)] == []


def test_other_rules_undo_what_the_old_ones_did_and_keep_what_is_the_same() -> None:
    kept, gone = rule(name="kept"), rule(name="gone", then="flag")
    policy = Policy((kept, gone))
    assert {d.by for _, d in play(policy, [50] * 4)} == {"kept", "gone"}
    assert [(d.action, d.by) for d in policy.set_rules((kept,))] == [("unflag", "gone")]
    assert policy.active == [("kept", 5, 7)]
    assert [(d.action, d.by) for d in policy.set_rules(())] == [("release", "kept")]


def test_rules_know_whom_they_are_for() -> None:
    policy = Policy((rule(consumers=(8,)), rule(name="b", when="backlog", then="flag")))
    for second in range(10):
        decisions = policy.judge(system(consumer(50, backlog=90)), second * S, NOBODY)
        assert {d.by for d in decisions} <= {"b"}
    assert policy.active == [("b", 5, 7)]


def test_rules_that_cannot_work_are_refused() -> None:
    wrong = [
        rule(max_rate_hz=0),
        rule(then="redirect"),
        rule(then="reconfigure"),
        rule(when="staleness"),
        rule(below=20.0),
    ]
    for one in wrong:
        assert list(one.faults()), one
    assert not list(rule().faults())


@given(st.lists(st.one_of(st.none(), st.floats(0, 100)), max_size=200))
def test_it_never_flickers(figures: list[float | None]) -> None:
    """Between an act and its undoing, and before the next act, at least the times of the rule pass."""
    policy, one = Policy((rule(),)), rule()
    made = play(policy, figures)
    assert [d.action for _, d in made] == (["limit", "release"] * 200)[: len(made)]
    for (before, first), (after, _) in pairwise(made):
        least_ns = one.clear_for_ns if first.action == "limit" else one.cool_down_ns
        assert (after - before) * S >= least_ns
    for second, decision in made:
        if decision.action == "limit":
            lasted = figures[second - 3 : second + 1]
            assert all(figure is not None and figure > one.above for figure in lasted)
