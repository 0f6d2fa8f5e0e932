"""What consumers tell of their latency, as an onlooker sums it up."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tensorpool.monitor import LatencyBook, StreamLatency
from tensorpool.sbe import ConsumerStatus, TimeOrigin

S = 1_000_000_000


def told(stream_id: int, consumer_id: int, p50: int, p99: int, most: int, **more: Any) -> bytes:
    fields: dict[str, Any] = {
        "stream_id": stream_id, "consumer_id": consumer_id, "pid": 1, "is_final": False,
        "latency_since": TimeOrigin.PUBLISH, "span": 0, "received": 0, "polls": 0, "latency_excluded": 0,
        "interval_frames": 1, "interval_p50_ns": p50, "interval_p99_ns": p99, "interval_max_ns": most,
        "total_frames": 1, "total_p50_ns": p50, "total_p99_ns": p99, "total_max_ns": most,
    }  # fmt: skip
    return ConsumerStatus(**{**fields, **more}).encode()


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


def test_reports_without_a_new_interval_have_no_latency() -> None:
    book = LatencyBook()
    book.hear(told(1, 7, 10, 90, 100, is_final=True), 0)
    book.hear(told(1, 8, 0, 0, 0, interval_frames=0), 0)
    assert book.of(1, 0) is None
    assert book.malformed == 0


@given(st.binary() | st.text() | st.none() | st.integers(), st.integers(0, 149))
def test_malformed_reports_are_counted_and_never_raise(noise: Any, end: int) -> None:
    book = LatencyBook()
    for said in (noise, told(1, 7, 1, 2, 3)[:end]):
        book.hear(said, 0)
    assert book.malformed == 2
    assert book.of(1, 0) is None
