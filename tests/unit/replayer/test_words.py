"""What was said of a recorded stream, and how it is said again."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tensorpool import _native, sbe
from tensorpool.attributes.metadata import BLOBS_KEY, JSON
from tensorpool.replayer.metadata import MAX_BLOB_BYTES, RecordedMetadata, VersionNumbering

STREAM, PLAYED = 10_000, 10_050


def row(message: sbe.Message, epoch: int | None = None) -> dict[str, Any]:
    return {"message": message.encode(), "epoch": epoch}


def announce(epoch: int, version: int, name: str = "camera") -> sbe.DataSourceAnnounce:
    return sbe.DataSourceAnnounce(
        stream_id=STREAM, producer_id=7, epoch=epoch, meta_version=version, name=name
    )


def meta(version: int, **attributes: Any) -> sbe.DataSourceMeta:
    given = tuple(
        sbe.Attribute(key=key, format=JSON, value=json.dumps(value).encode())
        for key, value in attributes.items()
    )
    return sbe.DataSourceMeta(stream_id=STREAM, meta_version=version, timestamp_ns=99, attributes=given)


def blob(version: int, kind: int, content: bytes, checksum: int | None = None) -> list[dict[str, Any]]:
    crc = _native.crc32c(content) if checksum is None else checksum
    size = len(content)
    parts = [
        sbe.MetaBlobAnnounce(
            stream_id=STREAM, meta_version=version, blob_type=kind, total_len=size, checksum=crc
        ),
        *(
            sbe.MetaBlobChunk(
                stream_id=STREAM, meta_version=version, chunk_offset=at, bytes=content[at : at + 10]
            )
            for at in range(0, size, 10)
        ),
        sbe.MetaBlobComplete(stream_id=STREAM, meta_version=version, checksum=crc),
    ]
    return [row(part) for part in parts]


def test_a_version_is_said_again_as_it_was_but_for_the_stream() -> None:
    words = RecordedMetadata([row(announce(1, 3)), row(meta(3, exposure_ms=4))])
    speech = words.speech(1, 3, PLAYED)
    assert speech is not None
    assert speech.version == 3
    said = sbe.DataSourceAnnounce.decode(speech.announce)
    assert (said.stream_id, said.meta_version, said.name) == (PLAYED, 3, "camera")
    again = sbe.DataSourceMeta.decode(speech.meta)
    assert (again.stream_id, again.timestamp_ns) == (PLAYED, 99)
    assert again.attributes == meta(3, exposure_ms=4).attributes


def test_what_is_unknown_is_not_made_up() -> None:
    words = RecordedMetadata([row(announce(1, 3)), row(meta(3, a=1))])
    assert words.speech(1, 4, PLAYED) is None
    assert words.speech(2, 3, PLAYED) is None
    assert words.numbers(1, np.array([0, 4, 3])).tolist() == [0, 4, 3]


def test_attributes_are_of_the_epoch_that_was_announced_last_unless_the_table_knows() -> None:
    words = RecordedMetadata([
        row(announce(1, 1)), row(meta(1, a=1)), row(announce(2, 1)), row(meta(1, a=2)),
        row(meta(9, a=3), epoch=1),
    ])  # fmt: skip
    assert words.speech(1, 1, STREAM) != words.speech(2, 1, STREAM)
    assert words.speech(1, 9, STREAM) is not None
    assert words.speech(2, 9, STREAM) is None


def test_a_number_that_means_something_else_in_another_epoch_gets_a_new_one() -> None:
    words = RecordedMetadata([
        row(announce(1, 1)), row(meta(1, a=1)), row(meta(2, a=2)),
        row(announce(2, 1)), row(meta(1, a=99)), row(meta(2, a=2)),
    ])  # fmt: skip
    assert words.numbers(1, np.array([1, 1, 2])).tolist() == [1, 1, 2]
    assert words.numbers(2, np.array([1, 2])).tolist() == [3, 2]
    speech = words.speech(2, 1, STREAM)
    assert speech is not None
    assert speech.version == sbe.DataSourceMeta.decode(speech.meta).meta_version == 3
    # Back in the first epoch, as after a loop, numbers are what they were.
    assert words.numbers(1, np.array([1, 2])).tolist() == [1, 2]


def test_a_blob_goes_with_the_versions_that_name_it() -> None:
    content = bytes(range(25))
    words = RecordedMetadata([
        row(announce(1, 1)), *blob(2, 7, content),
        row(meta(1, a=1)), row(meta(2, **{BLOBS_KEY: {"7": 2}})), row(meta(3, **{BLOBS_KEY: {"7": 2}})),
        row(meta(4, **{BLOBS_KEY: {}})),
    ])  # fmt: skip
    said = {version: words.speech(1, version, STREAM) for version in (1, 2, 3, 4)}
    assert {version: dict(speech.blobs) for version, speech in said.items() if speech is not None} == {
        1: {}, 2: {7: (2, content)}, 3: {7: (2, content)}, 4: {}
    }  # fmt: skip


def test_a_source_that_names_none_goes_with_the_last_of_each_type() -> None:
    words = RecordedMetadata([
        row(announce(1, 1)), *blob(1, 7, b"old"), *blob(3, 7, b"new"), *blob(2, 8, b"other"),
        *(row(meta(version, a=version)) for version in (1, 2, 3)),
    ])  # fmt: skip
    found = []
    for version in (1, 2, 3):
        speech = words.speech(1, version, STREAM)
        assert speech is not None
        found.append({kind: content for kind, (_, content) in speech.blobs.items()})
    assert found == [{7: b"old"}, {7: b"old", 8: b"other"}, {7: b"new", 8: b"other"}]


def test_a_renumbered_blob_is_named_by_its_new_number() -> None:
    named = {BLOBS_KEY: {"7": 1}}
    words = RecordedMetadata([
        row(announce(1, 1)), *blob(1, 7, b"first"), row(meta(1, **named)),
        row(announce(2, 1, "other")), *blob(1, 7, b"second"), row(meta(1, **named)),
    ])  # fmt: skip
    assert words.number(1, 1) == 1
    speech = words.speech(2, 1, STREAM)
    assert speech is not None
    assert dict(speech.blobs) == {7: (2, b"second")}
    (attribute,) = sbe.DataSourceMeta.decode(speech.meta).attributes
    assert json.loads(attribute.value) == {"7": 2}


def test_torn_wrong_and_huge_blobs_are_left_out() -> None:
    whole = blob(1, 7, b"x" * 30)
    huge = sbe.MetaBlobAnnounce(
        stream_id=STREAM, meta_version=3, blob_type=9, total_len=MAX_BLOB_BYTES + 1, checksum=0
    )
    rows = [
        row(announce(1, 1)), *whole[:2], *whole[3:], *blob(2, 8, b"wrong", checksum=5), row(huge),
        *(row(meta(version, a=version)) for version in (1, 2, 3)), {"message": b"no message", "epoch": None},
    ]  # fmt: skip
    words = RecordedMetadata(rows)
    assert words.undecodable == 1
    for version in (1, 2, 3):
        speech = words.speech(1, version, STREAM)
        assert speech is not None
        assert not speech.blobs
    # Sent again and again: the next time it was heard from its beginning.
    again = RecordedMetadata([*rows, *whole]).speech(1, 1, STREAM)
    assert again is not None
    assert dict(again.blobs) == {7: (1, b"x" * 30)}


def test_chunks_out_of_turn_do_not_get_into_a_blob() -> None:
    content = bytes(range(30))
    announced, first, second, third, complete = blob(1, 7, content, checksum=0)
    words = RecordedMetadata([
        row(announce(1, 1)), row(meta(1, a=1)), announced, second, first, second, second, third, complete
    ])  # fmt: skip
    speech = words.speech(1, 1, STREAM)
    assert speech is not None
    assert dict(speech.blobs) == {7: (1, content)}


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 4), st.integers(0, 2)), max_size=60))
def test_a_number_never_means_two_things(asked: list[tuple[int, int, int]]) -> None:
    numbering = VersionNumbering()
    given_to: dict[tuple[int, int], int] = {}
    content_of: dict[tuple[int, int], int] = {}
    meaning: dict[int, int] = {}
    for epoch, version, drawn in asked:
        # What a version of an epoch means does not change.
        content = content_of.setdefault((epoch, version), drawn)
        number = numbering.number(epoch, version, content)
        assert (number == 0) == (version == 0)
        assert given_to.setdefault((epoch, version), number) == number
        if version:
            assert meaning.setdefault(number, content) == content


def test_links_are_kept_by_trace() -> None:
    links = sbe.TraceLinkSet(
        stream_id=STREAM, epoch=1, seq=4, trace_id=77,
        parents=(sbe.TraceParent(trace_id=5), sbe.TraceParent(trace_id=6)),
    )  # fmt: skip
    assert RecordedMetadata([row(links)]).parents == {77: (5, 6)}
