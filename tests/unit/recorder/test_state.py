"""When is written: the gate, the ring of the past, the disk."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tensorpool.recorder.state import DiskSpace, PreTriggerBuffer, TriggerGate

from .test_account import piece

S = 1_000_000_000


def test_without_a_past_to_keep_the_gate_is_always_open() -> None:
    gate = TriggerGate(None)
    gate.trigger(5, 10)
    assert gate.is_open
    assert not gate.shut_if_over(10**18)


def test_a_trigger_opens_for_good_or_for_a_while() -> None:
    gate = TriggerGate(10 * S)
    assert not gate.is_open
    gate.trigger(0, 5 * S)
    assert gate.is_open
    assert not gate.shut_if_over(5 * S - 1)
    assert gate.shut_if_over(5 * S)
    assert not gate.is_open
    assert not gate.shut_if_over(6 * S), "it is shut already"
    gate.trigger(10 * S)
    assert not gate.shut_if_over(10**18)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), min_size=1, max_size=20))
def test_a_further_trigger_never_shortens_the_time(triggers: list[tuple[int, int]]) -> None:
    gate, now, until = TriggerGate(1), 0, 0
    for later, length in triggers:
        now += later
        if gate.is_open:
            assert gate.shut_if_over(now) == (now >= until)
        gate.trigger(now, length)
        until = max(until, now + length)
        assert gate.is_open
    gate.trigger(now)
    gate.trigger(now, 1)
    assert not gate.shut_if_over(10**18), "what was opened for good stays so"


def test_the_ring_keeps_what_is_young_and_gives_it_in_order() -> None:
    ring = PreTriggerBuffer(10_000)
    for first in (0, 4, 8, 12, 16):
        ring.add(piece(first, 4))
    assert ring.forget(16_000) == 1, "rows 0 to 3 are older than 6,000"
    found = list(ring.drain(16_000))
    assert [one.batch.seq.tolist() for one in found if one.batch] == [
        [6, 7],
        [8, 9, 10, 11],
        [12, 13, 14, 15],
        [16, 17, 18, 19],
    ]
    assert len(ring) == 0


def test_the_ring_gives_its_oldest_away_where_memory_is_short() -> None:
    ring = PreTriggerBuffer(10**18)
    ring.add(piece(0, 1))
    assert ring.forget_oldest()
    assert not ring.forget_oldest()


def test_a_disk_with_too_little_room_is_left_alone_until_there_is_twice_as_much() -> None:
    disk = DiskSpace(keep_free_bytes=100, retry_ns=S)
    assert disk.wants_look(0)
    assert not disk.looked(0, 100)
    assert not disk.wants_look(S - 1)
    assert disk.looked(S, 99)
    assert not disk.is_good
    assert disk.problem is not None
    assert not disk.looked(2 * S, 199)
    assert disk.looked(3 * S, 200)
    assert disk.is_good


def test_a_write_that_failed_waits_for_the_next_look() -> None:
    disk = DiskSpace(keep_free_bytes=0, retry_ns=S)
    assert disk.failed(0, "no space left")
    assert not disk.failed(1, "no space left"), "it is told once"
    assert not disk.wants_look(S)
    assert disk.wants_look(S + 1)
    assert not disk.looked(S, 0), "nothing is nothing, whatever has to be kept free"
    assert disk.looked(3 * S, 1)
    assert disk.is_good
