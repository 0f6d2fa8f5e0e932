"""The filter that decides which messages become rows of a recording."""

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


def announce(epoch: int = 1, timestamp_ns: int = 0, **changes: Any) -> bytes:
    fields: dict[str, Any] = {
        "stream_id": 7,
        "producer_id": 1,
        "epoch": epoch,
        "announce_timestamp_ns": timestamp_ns,
        "announce_clock_domain": ClockDomain.MONOTONIC,
        "layout_version": 1,
        "header_nslots": 8,
        "header_slot_bytes": 256,
        "header_region_uri": "shm:file?path=/dev/shm/x",
    }
    return ShmPoolAnnounce(**(fields | changes)).encode()


def test_filter_keeps_changed_announces_only() -> None:
    message_filter = MessageFilter()
    first = message_filter.to_row(announce())
    assert first is not None
    assert (first.table, first.stream_id, first.epoch, first.is_announce) == ("announces", 7, 1, True)
    assert message_filter.to_row(announce(timestamp_ns=5)) is None, "the same announce, a second later"
    assert message_filter.to_row(announce(producer_id=2)) is not None
    assert message_filter.to_row(announce(epoch=2)) is not None


def test_filter_keeps_metadata_once_per_version_and_epoch() -> None:
    message_filter = MessageFilter()
    message_filter.to_row(announce())
    meta = DataSourceMeta(stream_id=7, meta_version=3, timestamp_ns=1)
    again = DataSourceMeta(stream_id=7, meta_version=3, timestamp_ns=2)
    row = message_filter.to_row(meta.encode())
    assert row is not None
    assert (row.table, row.epoch, row.meta_version) == ("metadata", 1, 3)
    assert message_filter.to_row(again.encode()) is None
    message_filter.to_row(announce(epoch=2))
    assert message_filter.to_row(again.encode()) is not None
    source = DataSourceAnnounce(stream_id=7, producer_id=1, epoch=2, meta_version=3, name="camera")
    assert message_filter.to_row(source.encode()) is not None
    assert message_filter.to_row(source.encode()) is None


def test_filter_keeps_each_blob_chunk_once() -> None:
    message_filter = MessageFilter()
    chunks = [
        MetaBlobChunk(stream_id=7, meta_version=1, chunk_offset=offset, bytes=b"x" * 10).encode()
        for offset in (0, 10)
    ]
    assert [message_filter.to_row(chunk) is not None for chunk in (*chunks, *chunks)] == [
        True,
        True,
        False,
        False,
    ]


def test_filter_keeps_every_trace_link() -> None:
    message_filter = MessageFilter()
    links = TraceLinkSet(stream_id=7, epoch=2, seq=3, trace_id=9, parents=(TraceParent(trace_id=8),)).encode()
    row = message_filter.to_row(links)
    assert row is not None
    assert (row.table, row.stream_id, row.epoch, row.message) == ("metadata", 7, 2, links)


def test_filter_keeps_sources_of_driver_and_producer_once() -> None:
    """A driver repeats the name of its plan, as version 0, beside the producer's announce."""
    message_filter = MessageFilter()

    def source(version: int, name: str) -> bytes:
        return DataSourceAnnounce(
            stream_id=7, producer_id=1, epoch=1, meta_version=version, name=name
        ).encode()

    turn = [source(0, "plan"), source(1, "camera"), source(0, "")]
    kept = [message_filter.to_row(message) is not None for _ in range(3) for message in turn]
    # Of a producer without metadata there is nothing to keep.
    assert kept == [True, True, *[False] * 7]


def test_filter_keeps_every_qos_report_and_ignores_invalid_bytes() -> None:
    message_filter = MessageFilter()
    qos = QosProducer(stream_id=7, producer_id=1, epoch=1, current_seq=5).encode()
    assert [message_filter.to_row(qos) is not None for _ in range(3)] == [True, True, True]
    assert message_filter.to_row(b"") is None
    assert message_filter.to_row(b"\xff" * 100) is None


def test_filter_memory_of_one_stream_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """New versions are kept after any number of versions; a repeated message is still ignored."""
    monkeypatch.setattr(messages, "_MAX_MESSAGES", 10)
    message_filter = MessageFilter()
    message_filter.to_row(announce())
    for version in range(1, 100):
        meta = DataSourceMeta(stream_id=7, meta_version=version, timestamp_ns=1).encode()
        assert [message_filter.to_row(meta) is not None for _ in range(3)] == [True, False, False], version
        # Repeated in between: the most recently used entry is not evicted.
        assert message_filter.to_row(announce(timestamp_ns=version)) is None
    assert message_filter.to_row(announce(producer_id=2)) is not None
    assert message_filter.remembered_messages <= 10


def test_filter_memory_of_many_streams_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "_MAX_STREAMS", 10)
    message_filter = MessageFilter()
    for stream_id in range(1, 100):
        assert message_filter.to_row(announce(stream_id=stream_id)) is not None
        assert message_filter.to_row(announce(stream_id=stream_id, timestamp_ns=1)) is None
        meta = DataSourceMeta(stream_id=stream_id, meta_version=1, timestamp_ns=1).encode()
        row = message_filter.to_row(meta)
        assert row is not None
        assert row.epoch == 1
    assert (message_filter.remembered_streams, message_filter.remembered_messages) == (10, 2 * 10)
