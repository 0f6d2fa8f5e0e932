"""Words beside the frames: what is worth a row."""

from __future__ import annotations

from typing import Any

import pytest

from tensorpool.recorder import messages
from tensorpool.recorder.messages import MessageFilter
from tensorpool.sbe import (
    ClockDomain,
    DataSourceAnnounce,
    DataSourceMeta,
    MetaBlobChunk,
    QosProducer,
    ShmPoolAnnounce,
    TraceLinkSet,
    TraceParent,
)


def announce(epoch: int = 1, at_ns: int = 0, **changes: Any) -> bytes:
    words: dict[str, Any] = {
        "stream_id": 7,
        "producer_id": 1,
        "epoch": epoch,
        "announce_timestamp_ns": at_ns,
        "announce_clock_domain": ClockDomain.MONOTONIC,
        "layout_version": 1,
        "header_nslots": 8,
        "header_slot_bytes": 256,
        "header_region_uri": "shm:file?path=/dev/shm/x",
    }
    return ShmPoolAnnounce(**(words | changes)).encode()


def test_an_announce_is_kept_when_it_says_something_new() -> None:
    book = MessageFilter()
    first = book.hear(announce())
    assert first is not None
    assert (first.table, first.stream_id, first.epoch, first.is_announce) == ("announces", 7, 1, True)
    assert book.hear(announce(at_ns=5)) is None, "the same again, a second later"
    assert book.hear(announce(producer_id=2)) is not None
    assert book.hear(announce(epoch=2)) is not None


def test_metadata_are_kept_once_a_version_and_anew_with_each_epoch() -> None:
    book = MessageFilter()
    book.hear(announce())
    meta = DataSourceMeta(stream_id=7, meta_version=3, timestamp_ns=1)
    again = DataSourceMeta(stream_id=7, meta_version=3, timestamp_ns=2)
    note = book.hear(meta.encode())
    assert note is not None
    assert (note.table, note.epoch, note.meta_version) == ("metadata", 1, 3)
    assert book.hear(again.encode()) is None
    book.hear(announce(epoch=2))
    assert book.hear(again.encode()) is not None
    source = DataSourceAnnounce(stream_id=7, producer_id=1, epoch=2, meta_version=3, name="camera")
    assert book.hear(source.encode()) is not None
    assert book.hear(source.encode()) is None


def test_each_part_of_a_blob_is_kept_once() -> None:
    book = MessageFilter()
    parts = [
        MetaBlobChunk(stream_id=7, meta_version=1, chunk_offset=at, bytes=b"x" * 10).encode()
        for at in (0, 10)
    ]
    assert [book.hear(part) is not None for part in (*parts, *parts)] == [True, True, False, False]


def test_every_trace_link_is_kept() -> None:
    book = MessageFilter()
    links = TraceLinkSet(stream_id=7, epoch=2, seq=3, trace_id=9, parents=(TraceParent(trace_id=8),)).encode()
    note = book.hear(links)
    assert note is not None
    assert (note.table, note.stream_id, note.epoch, note.message) == ("metadata", 7, 2, links)


def test_qos_is_a_series_and_strange_bytes_are_nobodys() -> None:
    book = MessageFilter()
    qos = QosProducer(stream_id=7, producer_id=1, epoch=1, current_seq=5).encode()
    assert [book.hear(qos) is not None for _ in range(3)] == [True, True, True]
    assert book.hear(b"") is None
    assert book.hear(b"\xff" * 100) is None


def test_who_has_much_to_say_is_heard_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many versions there were: what is new is kept, and what was just said is still known."""
    monkeypatch.setattr(messages, "_MOST_KNOWN", 10)
    book = MessageFilter()
    book.hear(announce())
    for version in range(1, 100):
        meta = DataSourceMeta(stream_id=7, meta_version=version, timestamp_ns=1).encode()
        assert [book.hear(meta) is not None for _ in range(3)] == [True, False, False], version
        # Said again and again in between, so not forgotten.
        assert book.hear(announce(at_ns=version)) is None
    assert book.hear(announce(producer_id=2)) is not None
    assert sum(map(len, book._known.values())) <= 10


def test_many_streams_take_little_memory_and_each_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "_MOST_STREAMS", 10)
    book = MessageFilter()
    for stream_id in range(1, 100):
        assert book.hear(announce(stream_id=stream_id)) is not None
        assert book.hear(announce(stream_id=stream_id, at_ns=1)) is None
        meta = DataSourceMeta(stream_id=stream_id, meta_version=1, timestamp_ns=1).encode()
        note = book.hear(meta)
        assert note is not None
        assert note.epoch == 1
    assert (len(book._known), len(book._epochs)) == (10, 10)
