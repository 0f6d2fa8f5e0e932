"""Forwarded messages: another stream id, otherwise unchanged."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorpool.bridge.forwarding import read_info, replace_source, replace_stream
from tensorpool.sbe import DataSourceAnnounce, DataSourceMeta, FrameProgress, FrameProgressState

PROGRESS = FrameProgress(
    stream_id=1, epoch=2, seq=3, payload_bytes_filled=4, state=FrameProgressState.PROGRESS
)
META = DataSourceMeta(stream_id=1, meta_version=7, timestamp_ns=5)
ANNOUNCE = DataSourceAnnounce(stream_id=1, producer_id=2, epoch=3, meta_version=7, name="eye", summary="left")


@pytest.mark.requirement("bridge-9-3", "bridge-9-4")
def test_forwarded_progress_changes_only_its_stream():
    assert FrameProgress.decode(replace_stream(PROGRESS.encode(), 9)) == replace(PROGRESS, stream_id=9)


@pytest.mark.requirement("bridge-7.1-3")
def test_forwarded_metadata_keeps_its_version():
    meta = DataSourceMeta.decode(replace_stream(META.encode(), 9))
    assert (meta.stream_id, meta.meta_version, meta.timestamp_ns) == (9, 7, 5)
    encoded = replace_source(ANNOUNCE.encode(), 9, 8, 6)
    assert encoded is not None
    announce = DataSourceAnnounce.decode(encoded)
    assert (announce.stream_id, announce.producer_id, announce.epoch, announce.meta_version) == (9, 8, 6, 7)
    assert (announce.name, announce.summary) == ("eye", "left")


@given(st.integers(0, len(PROGRESS.encode()) - 1))
def test_truncated_message_has_no_info(length: int):
    assert read_info(PROGRESS.encode()[:length]) is None


def test_info_has_template_and_stream():
    info = read_info(PROGRESS.encode())
    assert info is not None
    assert (info.template_id, info.stream_id) == (11, 1)
    other = bytearray(PROGRESS.encode())
    other[4:6] = (901).to_bytes(2, "little")
    assert read_info(bytes(other)) is None
    assert replace_source(b"short", 1, 1, 1) is None


@given(st.binary(max_size=64))
def test_info_of_arbitrary_bytes_needs_a_complete_block(data: bytes):
    info = read_info(data)
    assert info is None or len(data) >= 12
