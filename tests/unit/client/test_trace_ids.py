"""Trace ids: never the same twice, on one host by construction."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorpool.client import TraceIds
from tensorpool.client.tracing import TraceNode
from tensorpool.clock import ManualClock

# All try the same node first: only that it is held keeps them apart, and not chance.
_FIRST_NODE = 7
_GENERATE = f"""
import secrets, sys
secrets.randbelow = lambda below: {_FIRST_NODE}
from tensorpool.client import TraceIds
ids = TraceIds()
print("ready", flush=True)
sys.stdin.readline()
print(*(ids.new_id() for _ in range(20_000)))
"""


def test_trace_ids_are_unique_and_sort_by_time() -> None:
    clock = ManualClock()
    ids = TraceIds(5, clock=clock)
    trace_ids = []
    for _ in range(3):
        trace_ids += [ids.new_id() for _ in range(5000)]
        clock.advance(0.001)
    clock.step_wall(-10)
    trace_ids += [ids.new_id() for _ in range(10)]
    assert trace_ids == sorted(set(trace_ids))
    assert all(0 < trace_id < 2**64 for trace_id in trace_ids)


@given(
    nodes=st.lists(st.integers(0, 4095), min_size=2, max_size=5, unique=True),
    steps=st.lists(
        st.tuples(st.integers(0, 4), st.integers(1, 1500), st.integers(-20, 20)), min_size=1, max_size=30
    ),
)
def test_trace_ids_of_different_nodes_never_meet(nodes: list[int], steps: list[tuple[int, int, int]]) -> None:
    """Whatever the clock does, and however many ids of one millisecond are made."""
    clock = ManualClock()
    sources = [TraceIds(node, clock=clock) for node in nodes]
    made: dict[int, list[int]] = {node: [] for node in nodes}
    for which, count, millisecond in steps:
        clock.step_wall(millisecond / 1000)
        node = nodes[which % len(nodes)]
        made[node] += [sources[which % len(nodes)].new_id() for _ in range(count)]
    assert all(ids == sorted(set(ids)) for ids in made.values())
    together = [trace_id for ids in made.values() for trace_id in ids]
    assert len(set(together)) == len(together)
    assert 0 not in together


@pytest.fixture
def node_holders(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[TraceIds]]:
    monkeypatch.setattr("tensorpool.client.tracing.secrets.randbelow", lambda below: _FIRST_NODE)
    holders = [TraceIds() for _ in range(20)]
    yield holders
    for holder in holders:
        holder.close()


def test_contexts_of_one_process_have_different_nodes(node_holders: list[TraceIds]) -> None:
    assert len({ids.new_id() >> 10 & 0xFFF for ids in node_holders}) == len(node_holders)


def test_ids_of_a_reused_node_are_later_than_those_of_its_last_holder() -> None:
    node = TraceNode()
    ids = TraceIds(node.number)
    last = [ids.new_id() for _ in range(100)][-1]
    node.close()
    again = TraceNode(node.number)
    assert again.number == node.number
    assert TraceIds(again.number).new_id() > last | 0x3FF
    again.close()


def test_trace_ids_of_two_processes_never_meet() -> None:
    """Both create ids at once, so in the same milliseconds."""
    command = [sys.executable, "-c", _GENERATE]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    made = [set(map(int, process.communicate(timeout=120)[0].split())) for process in processes]
    assert [len(ids) for ids in made] == [20_000, 20_000]
    assert not made[0] & made[1]
