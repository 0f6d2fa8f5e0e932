"""What consumers tell of their latency, as an onlooker sums it up."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tensorpool.monitor import LatencyBook, StreamLatency

S = 1_000_000_000


def told(stream_id: int, consumer_id: int, p50: int, p99: int, most: int) -> str:
    figures = {"p50_ns": p50, "p99_ns": p99, "max_ns": most}
    return json.dumps({"stream_id": stream_id, "consumer_id": consumer_id, **figures})


def test_the_slowest_consumer_of_a_stream_counts() -> None:
    book = LatencyBook()
    book.hear(told(1, 7, 10, 90, 100), 0)
    book.hear(told(1, 8, 20, 50, 200), 0)
    book.hear(told(2, 7, 999, 999, 999), 0)
    assert book.of(1, 0) == StreamLatency(2, 20, 90, 200)
    assert book.of(3, 0) is None


def test_the_last_word_of_each_counts_and_is_forgotten() -> None:
    book = LatencyBook()
    book.hear(told(1, 7, 10, 90, 100), 0)
    book.hear(told(1, 7, 1, 9, 10), S)
    assert book.of(1, S) == StreamLatency(1, 1, 9, 10)
    assert book.of(1, 4 * S) == StreamLatency(1, 1, 9, 10)
    assert book.of(1, 4 * S + 1) is None


def test_strangers_cannot_fill_it() -> None:
    book = LatencyBook()
    for number in range(5000):
        book.hear(told(1, number, 1, 1, number), 0)
    found = book.of(1, 0)
    assert found is not None
    assert (found.consumers, found.max_ns) == (4096, 4999)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.sampled_from(["stream_id", "consumer_id", "p50_ns", "p99_ns", "max_ns"]), inner)
    ),
    max_leaves=8,
)


@given(anything | st.binary() | st.text().map(lambda text: text[:40]), anything)
def test_whatever_is_said_is_counted_or_taken_and_never_raises(raw: Any, value: Any) -> None:
    book = LatencyBook()
    for said in (raw, json.dumps(value)):
        before = book.malformed
        book.hear(said, 0)
        assert book.malformed - before in (0, 1)
    found = book.of(1, 0)
    assert found is None or min(found.p50_ns, found.p99_ns, found.max_ns) >= 0
