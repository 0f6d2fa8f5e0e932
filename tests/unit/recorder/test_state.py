"""The recorder's state: trigger gate, pre-trigger buffer, disk space."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tensorpool.recorder.sink import DiskSpace
from tensorpool.recorder.state import PreTriggerBuffer, TriggerGate

from .test_ledger import arena_rows

S = 1_000_000_000


def test_gate_without_pre_trigger_is_always_open() -> None:
    gate = TriggerGate(None)
    gate.trigger(5, 10)
    assert gate.is_open
    assert not gate.close_if_expired(10**18)


def test_trigger_opens_the_gate_with_or_without_end() -> None:
    gate = TriggerGate(10 * S)
    assert not gate.is_open
    gate.trigger(0, 5 * S)
    assert gate.is_open
    assert not gate.close_if_expired(5 * S - 1)
    assert gate.close_if_expired(5 * S)
    assert not gate.is_open
    assert not gate.close_if_expired(6 * S), "the gate is closed already"
    gate.trigger(10 * S)
    assert not gate.close_if_expired(10**18)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), min_size=1, max_size=20))
def test_second_trigger_never_shortens_the_time(triggers: list[tuple[int, int]]) -> None:
    gate, now, until = TriggerGate(1), 0, 0
    for delay, length in triggers:
        now += delay
        if gate.is_open:
            assert gate.close_if_expired(now) == (now >= until)
        gate.trigger(now, length)
        until = max(until, now + length)
        assert gate.is_open
    gate.trigger(now)
    gate.trigger(now, 1)
    assert not gate.close_if_expired(10**18), "a trigger without end stays in force"


def test_pre_trigger_buffer_drains_recent_rows_in_order() -> None:
    buffer = PreTriggerBuffer(10_000)
    for first in (0, 4, 8, 12, 16):
        buffer.add(arena_rows(first, 4))
    assert buffer.evict_expired(16_000) == 1, "rows 0 to 3 are older than 6,000"
    drained = list(buffer.drain(16_000))
    assert [rows.batch.seq.tolist() for rows in drained if rows.batch] == [
        [6, 7],
        [8, 9, 10, 11],
        [12, 13, 14, 15],
        [16, 17, 18, 19],
    ]
    assert len(buffer) == 0


def test_pre_trigger_buffer_evicts_its_oldest_arena() -> None:
    buffer = PreTriggerBuffer(10**18)
    buffer.add(arena_rows(0, 1))
    assert buffer.evict_oldest()
    assert not buffer.evict_oldest()


def test_disk_space_resumes_at_twice_the_kept_space() -> None:
    disk = DiskSpace(keep_free_bytes=100, retry_ns=S)
    assert disk.is_check_due(0)
    assert not disk.on_check(0, 100)
    assert not disk.is_check_due(S - 1)
    assert disk.on_check(S, 99)
    assert not disk.is_writable
    assert disk.problem is not None
    assert not disk.on_check(2 * S, 199)
    assert disk.on_check(3 * S, 200)
    assert disk.is_writable


def test_disk_space_after_a_failed_write_waits_for_a_check() -> None:
    disk = DiskSpace(keep_free_bytes=0, retry_ns=S)
    assert disk.on_failure(0, "no space left")
    assert not disk.on_failure(1, "no space left"), "only the first failure is a change"
    assert not disk.is_check_due(S)
    assert disk.is_check_due(S + 1)
    assert not disk.on_check(S, 0), "a disk without any space is full, whatever keep_free is"
    assert disk.on_check(3 * S, 1)
    assert disk.is_writable
