"""The state of a destination: attach, refusal, other candidates, and new epochs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tensorpool.bridge.destination import (
    MAX_REFUSED_NS,
    RETRY_NS,
    AttachStep,
    DestinationFailure,
    DestinationLayout,
    DestinationState,
)

SMALL = DestinationLayout(8, (4096, 65_536))


def state(
    *candidates: int, layout: DestinationLayout | None = None, uses_source_layout: bool = True
) -> DestinationState:
    return DestinationState(
        candidates or (50_000,), layout=layout, uses_source_layout=uses_source_layout, max_bytes=1 << 20
    )


def test_destination_waits_for_the_layout_of_its_source():
    destination = state()
    assert destination.next_step(0, None, has_destination=False) is None
    assert destination.next_step(0, SMALL, has_destination=False) == AttachStep(50_000, SMALL)
    assert destination.next_step(0, SMALL, has_destination=False) is None, "an attach is in progress"
    destination.on_attached()
    assert destination.next_step(0, SMALL, has_destination=True) is None


def test_destination_with_a_profile_attaches_at_once():
    assert state(layout=SMALL, uses_source_layout=False).next_step(
        0, None, has_destination=False
    ) == AttachStep(50_000, SMALL)
    assert state(uses_source_layout=False).next_step(0, None, has_destination=False) == AttachStep(
        50_000, None
    )


def test_ended_destination_is_attached_again():
    destination = state()
    destination.next_step(0, SMALL, has_destination=False)
    destination.on_attached()
    assert destination.next_step(1, SMALL, has_destination=False) == AttachStep(50_000, SMALL)


def test_invalid_or_oversized_source_layout_is_refused():
    for source in (
        DestinationLayout(7, (4096,)),
        DestinationLayout(8, (4097,)),
        DestinationLayout(8, ()),
        DestinationLayout(1024, (1 << 20,)),
    ):
        destination = state()
        assert destination.next_step(0, source, has_destination=False) is None, source
        assert destination.fault
        assert destination.next_step(0, SMALL, has_destination=False) is not None, (
            "the layout of the next epoch may be valid"
        )


def test_first_attach_fails_after_repeated_refusals():
    destination = state()
    now = 0
    for _ in range(MAX_REFUSED_NS // RETRY_NS):
        assert destination.next_step(now, SMALL, has_destination=False) is not None
        assert destination.on_refused(now, "REJECTED", "taken") is None
        assert destination.next_step(now + RETRY_NS - 1, SMALL, has_destination=False) is None
        now += RETRY_NS
    destination.next_step(now, SMALL, has_destination=False)
    assert destination.on_refused(now, "REJECTED", "taken") == DestinationFailure("taken")


def test_missing_answers_are_retried_without_end():
    destination = state()
    for second in range(60):
        destination.next_step(second * RETRY_NS, SMALL, has_destination=False)
        assert destination.on_refused(second * RETRY_NS, "NO_ANSWER", "no driver") is None


def test_refusals_after_an_attach_are_retried_without_end():
    destination = state()
    destination.next_step(0, SMALL, has_destination=False)
    destination.on_attached()
    for second in range(60):
        assert destination.next_step(second * RETRY_NS, SMALL, has_destination=False) is not None
        assert destination.on_refused(second * RETRY_NS, "REJECTED", "taken") is None


@given(taken=st.sets(st.integers(50_000, 50_009), max_size=9))
def test_first_free_id_of_a_range_is_used(taken: set[int]):
    destination = state(*range(50_000, 50_010))
    for _ in range(10):
        step = destination.next_step(0, SMALL, has_destination=False)
        assert step is not None
        if step.stream_id not in taken:
            break
        assert destination.on_refused(0, "REJECTED", "taken") is None
    assert step == AttachStep(min(set(range(50_000, 50_010)) - taken), SMALL)
