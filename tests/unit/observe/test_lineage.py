"""Trees of frames, from descriptors and link sets in any order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tensorpool.monitor import LineageTracker, TracedFrame
from tensorpool.sbe import FrameDescriptor, TraceLinkSet, TraceParent


def frame(stream_id: int, seq: int, trace_id: int | None) -> bytes:
    return FrameDescriptor(stream_id=stream_id, epoch=1, seq=seq, trace_id=trace_id).encode()


def links(trace_id: int, *parents: int) -> bytes:
    entries = tuple(TraceParent(trace_id=one) for one in parents)
    return TraceLinkSet(stream_id=1, epoch=1, seq=1, trace_id=trace_id, parents=entries).encode()


def test_a_tree_grows_from_frames_and_links_in_any_order() -> None:
    book = LineageTracker()
    book.hear(links(30, 10, 20))
    for message in (frame(1, 5, 10), frame(2, 6, 20), frame(3, 0, 10), frame(4, 7, 30)):
        assert book.hear(message) is not None
    tree = book.lineage(30)
    assert [one.trace_id for one in tree] == [30, 10, 20]
    assert tree.frames == (TracedFrame(4, 1, 7, 30),)
    assert [(f.stream_id, f.seq) for f in tree.parents[0].frames] == [(1, 5), (3, 0)]
    assert tree.as_json()["parents"][1] == {
        "trace_id": "20",
        "frames": [{"stream_id": 2, "epoch": "1", "seq": "6"}],
        "parents": [],
    }


def test_what_breaks_a_rule_is_counted_and_changes_nothing() -> None:
    book = LineageTracker()
    for message in (b"", b"noise" * 9, links(5), links(5, 0), links(5, 6, 6), links(5, 5)):
        assert book.hear(message) is None
    assert (book.malformed, len(book)) == (6, 0)
    assert book.hear(frame(1, 1, None)) is None
    assert (book.untraced, len(book)) == (1, 0)
    assert book.hear(frame(1, 2, 9)) == TracedFrame(1, 1, 2, 9)


def test_the_oldest_traces_are_forgotten() -> None:
    book = LineageTracker(max_traces=10)
    for trace_id in range(1, 100):
        book.hear(frame(1, trace_id, trace_id))
        book.hear(frame(2, trace_id, 1))
    assert len(book) == 10
    assert len(book.lineage(1).frames) == 64
    assert book.lineage(50).frames == ()


@given(st.lists(st.tuples(st.integers(1, 8), st.sets(st.integers(1, 8), min_size=1)), max_size=40))
def test_a_tree_ends_whatever_was_said(said: list[tuple[int, set[int]]]) -> None:
    book = LineageTracker()
    parents: dict[int, set[int]] = {}
    for trace_id, named in said:
        book.hear(links(trace_id, *named))
        if trace_id not in named:
            parents[trace_id] = named
    for trace_id in range(1, 9):
        tree = book.lineage(trace_id)
        nodes = list(tree)
        assert len(nodes) <= 2000
        for node in nodes:
            assert {one.trace_id for one in node.parents} <= parents.get(node.trace_id, set())
