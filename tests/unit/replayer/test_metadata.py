"""Recorded metadata: versions, blobs and trace links, and their messages in a replay."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tensorpool import _native, sbe
from tensorpool.attributes.metadata import BLOBS_KEY, JSON
from tensorpool.recording.arrow_format import MessageTableRow
from tensorpool.replayer.metadata import MAX_BLOB_BYTES, RecordedMetadata, VersionNumbering

STREAM, TARGET = 10_000, 10_050


def row(message: sbe.Message, epoch: int | None = None) -> MessageTableRow:
    return {
        "receive_time_ns": 0,
        "stream_id": STREAM,
        "epoch": epoch,
        "meta_version": None,
        "kind": type(message).__name__,
        "message": message.encode(),
        "json": None,
    }


def announce(epoch: int, version: int, name: str = "camera") -> sbe.DataSourceAnnounce:
    return sbe.DataSourceAnnounce(
        stream_id=STREAM, producer_id=7, epoch=epoch, meta_version=version, name=name
    )


def meta(version: int, **attributes: Any) -> sbe.DataSourceMeta:
    items = tuple(
        sbe.Attribute(key=key, format=JSON, value=json.dumps(value).encode())
        for key, value in attributes.items()
    )
    return sbe.DataSourceMeta(stream_id=STREAM, meta_version=version, timestamp_ns=99, attributes=items)


def blob(version: int, blob_type: int, content: bytes, checksum: int | None = None) -> list[MessageTableRow]:
    crc = _native.crc32c(content) if checksum is None else checksum
    size = len(content)
    messages = [
        sbe.MetaBlobAnnounce(
            stream_id=STREAM, meta_version=version, blob_type=blob_type, total_len=size, checksum=crc
        ),
        *(
            sbe.MetaBlobChunk(
                stream_id=STREAM,
                meta_version=version,
                chunk_offset=offset,
                bytes=content[offset : offset + 10],
            )
            for offset in range(0, size, 10)
        ),
        sbe.MetaBlobComplete(stream_id=STREAM, meta_version=version, checksum=crc),
    ]
    return [row(message) for message in messages]


def test_update_repeats_a_version_for_another_stream() -> None:
    metadata = RecordedMetadata([row(announce(1, 3)), row(meta(3, exposure_ms=4))])
    update = metadata.update_for(1, 3, TARGET)
    assert update is not None
    assert update.version == 3
    announced = sbe.DataSourceAnnounce.decode(update.announce)
    assert (announced.stream_id, announced.meta_version, announced.name) == (TARGET, 3, "camera")
    repeated = sbe.DataSourceMeta.decode(update.meta)
    assert (repeated.stream_id, repeated.timestamp_ns) == (TARGET, 99)
    assert repeated.attributes == meta(3, exposure_ms=4).attributes


def test_unknown_versions_have_no_update() -> None:
    metadata = RecordedMetadata([row(announce(1, 3)), row(meta(3, a=1))])
    assert metadata.update_for(1, 4, TARGET) is None
    assert metadata.update_for(2, 3, TARGET) is None
    assert metadata.numbers(1, np.array([0, 4, 3])).tolist() == [0, 4, 3]


def test_attributes_belong_to_the_last_announced_epoch() -> None:
    metadata = RecordedMetadata([
        row(announce(1, 1)), row(meta(1, a=1)), row(announce(2, 1)), row(meta(1, a=2)),
        row(meta(9, a=3), epoch=1),
    ])  # fmt: skip
    assert metadata.update_for(1, 1, STREAM) != metadata.update_for(2, 1, STREAM)
    assert metadata.update_for(1, 9, STREAM) is not None
    assert metadata.update_for(2, 9, STREAM) is None


def test_version_reused_in_another_epoch_gets_a_new_number() -> None:
    metadata = RecordedMetadata([
        row(announce(1, 1)), row(meta(1, a=1)), row(meta(2, a=2)),
        row(announce(2, 1)), row(meta(1, a=99)), row(meta(2, a=2)),
    ])  # fmt: skip
    assert metadata.numbers(1, np.array([1, 1, 2])).tolist() == [1, 1, 2]
    assert metadata.numbers(2, np.array([1, 2])).tolist() == [3, 2]
    update = metadata.update_for(2, 1, STREAM)
    assert update is not None
    assert update.version == sbe.DataSourceMeta.decode(update.meta).meta_version == 3
    # In the first epoch again, as after a loop, the numbers are the same.
    assert metadata.numbers(1, np.array([1, 2])).tolist() == [1, 2]


def test_blob_belongs_to_the_versions_that_name_it() -> None:
    content = bytes(range(25))
    metadata = RecordedMetadata([
        row(announce(1, 1)), *blob(2, 7, content),
        row(meta(1, a=1)), row(meta(2, **{BLOBS_KEY: {"7": 2}})), row(meta(3, **{BLOBS_KEY: {"7": 2}})),
        row(meta(4, **{BLOBS_KEY: {}})),
    ])  # fmt: skip
    updates = {version: metadata.update_for(1, version, STREAM) for version in (1, 2, 3, 4)}
    assert {version: dict(update.blobs) for version, update in updates.items() if update is not None} == {
        1: {}, 2: {7: (2, content)}, 3: {7: (2, content)}, 4: {}
    }  # fmt: skip


def test_versions_without_names_have_the_latest_blobs() -> None:
    metadata = RecordedMetadata([
        row(announce(1, 1)), *blob(1, 7, b"old"), *blob(3, 7, b"new"), *blob(2, 8, b"other"),
        *(row(meta(version, a=version)) for version in (1, 2, 3)),
    ])  # fmt: skip
    contents = []
    for version in (1, 2, 3):
        update = metadata.update_for(1, version, STREAM)
        assert update is not None
        contents.append({blob_type: content for blob_type, (_, content) in update.blobs.items()})
    assert contents == [{7: b"old"}, {7: b"old", 8: b"other"}, {7: b"new", 8: b"other"}]


def test_renumbered_blob_is_named_by_its_new_number() -> None:
    named = {BLOBS_KEY: {"7": 1}}
    metadata = RecordedMetadata([
        row(announce(1, 1)), *blob(1, 7, b"first"), row(meta(1, **named)),
        row(announce(2, 1, "other")), *blob(1, 7, b"second"), row(meta(1, **named)),
    ])  # fmt: skip
    assert metadata.number(1, 1) == 1
    update = metadata.update_for(2, 1, STREAM)
    assert update is not None
    assert dict(update.blobs) == {7: (2, b"second")}
    (attribute,) = sbe.DataSourceMeta.decode(update.meta).attributes
    assert json.loads(attribute.value) == {"7": 2}


def test_incomplete_invalid_and_huge_blobs_are_ignored() -> None:
    whole = blob(1, 7, b"x" * 30)
    huge = sbe.MetaBlobAnnounce(
        stream_id=STREAM, meta_version=3, blob_type=9, total_len=MAX_BLOB_BYTES + 1, checksum=0
    )
    rows: list[MessageTableRow] = [
        row(announce(1, 1)), *whole[:2], *whole[3:], *blob(2, 8, b"wrong", checksum=5), row(huge),
        *(row(meta(version, a=version)) for version in (1, 2, 3)), {**row(huge), "message": b"no message"},
    ]  # fmt: skip
    metadata = RecordedMetadata(rows)
    assert metadata.undecodable == 1
    for version in (1, 2, 3):
        update = metadata.update_for(1, version, STREAM)
        assert update is not None
        assert not update.blobs
    # Blobs are sent repeatedly: the next time the blob is complete.
    complete = RecordedMetadata([*rows, *whole]).update_for(1, 1, STREAM)
    assert complete is not None
    assert dict(complete.blobs) == {7: (1, b"x" * 30)}


def test_chunks_out_of_order_are_ignored() -> None:
    content = bytes(range(30))
    announced, first, second, third, complete = blob(1, 7, content, checksum=0)
    metadata = RecordedMetadata([
        row(announce(1, 1)), row(meta(1, a=1)), announced, second, first, second, second, third, complete
    ])  # fmt: skip
    update = metadata.update_for(1, 1, STREAM)
    assert update is not None
    assert dict(update.blobs) == {7: (1, content)}


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 4), st.integers(0, 2)), max_size=60))
def test_numbers_identify_one_content(requests: list[tuple[int, int, int]]) -> None:
    numbering = VersionNumbering()
    numbers: dict[tuple[int, int], int] = {}
    content_of: dict[tuple[int, int], int] = {}
    contents: dict[int, int] = {}
    for epoch, version, drawn in requests:
        # The content of a version of an epoch does not change.
        content = content_of.setdefault((epoch, version), drawn)
        number = numbering.number(epoch, version, content)
        assert (number == 0) == (version == 0)
        assert numbers.setdefault((epoch, version), number) == number
        if version:
            assert contents.setdefault(number, content) == content


def test_trace_links_are_stored_by_trace_id() -> None:
    links = sbe.TraceLinkSet(
        stream_id=STREAM, epoch=1, seq=4, trace_id=77,
        parents=(sbe.TraceParent(trace_id=5), sbe.TraceParent(trace_id=6)),
    )  # fmt: skip
    assert RecordedMetadata([row(links)]).parents == {77: (5, 6)}
