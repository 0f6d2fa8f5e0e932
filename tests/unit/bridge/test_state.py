"""A destination's way: one at a time, another id where there is one, and anew at each epoch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tensorpool.bridge.state import PATIENCE_NS, RETRY_NS, Attach, DestinationLayout, DestinationState, Fail

SMALL = DestinationLayout(8, (4096, 65_536))


def state(
    *candidates: int, layout: DestinationLayout | None = None, as_source: bool = True
) -> DestinationState:
    return DestinationState(candidates or (50_000,), layout=layout, as_source=as_source, max_bytes=1 << 20)


def test_it_waits_for_the_source_whose_layout_it_is_to_have():
    one = state()
    assert one.next(0, None, has_destination=False) is None
    assert one.next(0, SMALL, has_destination=False) == Attach(50_000, SMALL)
    assert one.next(0, SMALL, has_destination=False) is None, "it is being attached"
    one.attached()
    assert one.next(0, SMALL, has_destination=True) is None


def test_a_layout_of_its_own_waits_for_nobody():
    assert state(layout=SMALL, as_source=False).next(0, None, has_destination=False) == Attach(50_000, SMALL)
    assert state(as_source=False).next(0, None, has_destination=False) == Attach(50_000, None)


def test_a_destination_that_was_used_up_is_replaced():
    one = state()
    one.next(0, SMALL, has_destination=False)
    one.attached()
    assert one.next(1, SMALL, has_destination=False) == Attach(50_000, SMALL)


def test_what_a_source_announces_is_not_made_if_it_cannot_be_or_is_too_much():
    for source in (
        DestinationLayout(7, (4096,)),
        DestinationLayout(8, (4097,)),
        DestinationLayout(8, ()),
        DestinationLayout(1024, (1 << 20,)),
    ):
        one = state()
        assert one.next(0, source, has_destination=False) is None, source
        assert one.fault
        assert one.next(0, SMALL, has_destination=False) is not None, "the next epoch may be better"


def test_a_refusal_is_borne_for_a_while_and_then_fails_the_first_attach():
    one = state()
    now = 0
    for _ in range(PATIENCE_NS // RETRY_NS):
        assert one.next(now, SMALL, has_destination=False) is not None
        assert one.refused(now, "REJECTED", "taken") is None
        assert one.next(now + RETRY_NS - 1, SMALL, has_destination=False) is None
        now += RETRY_NS
    one.next(now, SMALL, has_destination=False)
    assert one.refused(now, "REJECTED", "taken") == Fail("taken")


def test_a_driver_that_is_silent_is_waited_for():
    one = state()
    for second in range(60):
        one.next(second * RETRY_NS, SMALL, has_destination=False)
        assert one.refused(second * RETRY_NS, "NO_ANSWER", "no driver") is None


def test_what_was_there_once_is_asked_for_for_ever():
    one = state()
    one.next(0, SMALL, has_destination=False)
    one.attached()
    for second in range(60):
        assert one.next(second * RETRY_NS, SMALL, has_destination=False) is not None
        assert one.refused(second * RETRY_NS, "REJECTED", "taken") is None


@given(taken=st.sets(st.integers(50_000, 50_009), max_size=9))
def test_the_first_free_id_of_a_range_is_found(taken: set[int]):
    one = state(*range(50_000, 50_010))
    for _ in range(10):
        step = one.next(0, SMALL, has_destination=False)
        assert step is not None
        if step.stream_id not in taken:
            break
        assert one.refused(0, "REJECTED", "taken") is None
    assert step == Attach(min(set(range(50_000, 50_010)) - taken), SMALL)
