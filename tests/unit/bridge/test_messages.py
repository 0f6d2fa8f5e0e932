"""Messages cross with another stream id, and otherwise as they were."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorpool.bridge.forwarding import read_info, with_source, with_stream
from tensorpool.sbe import DataSourceAnnounce, DataSourceMeta, FrameProgress, FrameProgressState

PROGRESS = FrameProgress(
    stream_id=1, epoch=2, seq=3, payload_bytes_filled=4, state=FrameProgressState.PROGRESS
)
META = DataSourceMeta(stream_id=1, meta_version=7, timestamp_ns=5)
ANNOUNCE = DataSourceAnnounce(stream_id=1, producer_id=2, epoch=3, meta_version=7, name="eye", summary="left")


@pytest.mark.requirement("bridge-9-3", "bridge-9-4")
def test_progress_changes_its_stream_and_nothing_else():
    assert FrameProgress.decode(with_stream(PROGRESS.encode(), 9)) == replace(PROGRESS, stream_id=9)


@pytest.mark.requirement("bridge-7.1-3")
def test_metadata_keeps_its_version():
    there = DataSourceMeta.decode(with_stream(META.encode(), 9))
    assert (there.stream_id, there.meta_version, there.timestamp_ns) == (9, 7, 5)
    moved = with_source(ANNOUNCE.encode(), 9, 8, 6)
    assert moved is not None
    told = DataSourceAnnounce.decode(moved)
    assert (told.stream_id, told.producer_id, told.epoch, told.meta_version) == (9, 8, 6, 7)
    assert (told.name, told.summary) == ("eye", "left")


@given(st.integers(0, len(PROGRESS.encode()) - 1))
def test_a_message_that_is_cut_short_is_none(length: int):
    assert read_info(PROGRESS.encode()[:length]) is None


def test_what_a_message_is_stands_in_its_head():
    head = read_info(PROGRESS.encode())
    assert head is not None
    assert (head.template_id, head.stream_id) == (11, 1)
    other = bytearray(PROGRESS.encode())
    other[4:6] = (901).to_bytes(2, "little")
    assert read_info(bytes(other)) is None
    assert with_source(b"short", 1, 1, 1) is None


@given(st.binary(max_size=64))
def test_no_bytes_are_taken_for_a_message_that_is_longer_than_they_are(data: bytes):
    head = read_info(data)
    assert head is None or len(data) >= 12
