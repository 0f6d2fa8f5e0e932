"""Lineages of frames, from descriptors and trace links in any order."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tensorpool.monitor.lineage import LineageTracker, TracedFrame
from tensorpool.sbe import FrameDescriptor, TraceLinkSet, TraceParent


def frame(stream_id: int, seq: int, trace_id: int | None) -> bytes:
    return FrameDescriptor(stream_id=stream_id, epoch=1, seq=seq, trace_id=trace_id).encode()


def links(trace_id: int, *parents: int) -> bytes:
    entries = tuple(TraceParent(trace_id=parent) for parent in parents)
    return TraceLinkSet(stream_id=1, epoch=1, seq=1, trace_id=trace_id, parents=entries).encode()


def test_lineage_is_built_from_frames_and_links_in_any_order() -> None:
    tracker = LineageTracker()
    tracker.on_message(links(30, 10, 20))
    for message in (frame(1, 5, 10), frame(2, 6, 20), frame(3, 0, 10), frame(4, 7, 30)):
        assert tracker.on_message(message) is not None
    tree = tracker.lineage(30)
    assert [one.trace_id for one in tree] == [30, 10, 20]
    assert tree.frames == (TracedFrame(4, 1, 7, 30),)
    assert [(f.stream_id, f.seq) for f in tree.parents[0].frames] == [(1, 5), (3, 0)]
    shown: Any = tree.to_json()
    assert shown["parents"][1] == {
        "trace_id": "20",
        "frames": [{"stream_id": 2, "epoch": "1", "seq": "6"}],
        "parents": [],
    }


def test_invalid_messages_are_counted_and_change_nothing() -> None:
    tracker = LineageTracker()
    for message in (b"", b"noise" * 9, links(5), links(5, 0), links(5, 6, 6), links(5, 5)):
        assert tracker.on_message(message) is None
    assert (tracker.malformed, len(tracker)) == (6, 0)
    assert tracker.on_message(frame(1, 1, None)) is None
    assert (tracker.untraced, len(tracker)) == (1, 0)
    assert tracker.on_message(frame(1, 2, 9)) == TracedFrame(1, 1, 2, 9)


def test_tracker_drops_its_oldest_traces() -> None:
    tracker = LineageTracker(max_traces=10)
    for trace_id in range(1, 100):
        tracker.on_message(frame(1, trace_id, trace_id))
        tracker.on_message(frame(2, trace_id, 1))
    assert len(tracker) == 10
    assert len(tracker.lineage(1).frames) == 64
    assert tracker.lineage(50).frames == ()


@given(st.lists(st.tuples(st.integers(1, 8), st.sets(st.integers(1, 8), min_size=1)), max_size=40))
def test_lineage_is_finite_for_any_links(link_sets: list[tuple[int, set[int]]]) -> None:
    tracker = LineageTracker()
    parents: dict[int, set[int]] = {}
    for trace_id, named in link_sets:
        tracker.on_message(links(trace_id, *named))
        if trace_id not in named:
            parents[trace_id] = named
    for trace_id in range(1, 9):
        tree = tracker.lineage(trace_id)
        nodes = list(tree)
        assert len(nodes) <= 2000
        for node in nodes:
            assert {one.trace_id for one in node.parents} <= parents.get(node.trace_id, set())
