"""Forwarded messages: another stream id, otherwise unchanged."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorpool.bridge.forwarding import PendingLinks, read_info, replace_source, replace_stream
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


class TakingPublication:
    """Takes messages only while it is open."""

    def __init__(self) -> None:
        self.is_open = False
        self.taken: list[bytes] = []
        self.outcomes: list[bool] = []

    def offer(self, message: bytes) -> bool:
        if self.is_open:
            self.taken.append(message)
        return self.is_open


def test_links_wait_for_their_publication_and_keep_their_order():
    publication = TakingPublication()
    links = PendingLinks(publication.offer, publication.outcomes.append)
    links.add(b"1", 0)
    links.add(b"2", 1)
    assert publication.taken == []
    assert links.send(2) == 0
    publication.is_open = True
    links.add(b"3", 3)
    assert publication.taken == [b"1", b"2", b"3"]
    assert publication.outcomes == [True, True, True]
    assert links.send(4) == 0


def test_links_that_are_too_old_or_too_many_are_counted():
    publication = TakingPublication()
    links = PendingLinks(publication.offer, publication.outcomes.append)
    for number in range(PendingLinks.MAX_LINKS + 1):
        links.add(b"%d" % number, 0)
    assert publication.outcomes == [False]
    assert links.send(PendingLinks.MAX_AGE_NS - 1) == 0
    assert links.send(PendingLinks.MAX_AGE_NS) == PendingLinks.MAX_LINKS
    assert publication.outcomes == [False] * (PendingLinks.MAX_LINKS + 1)
    assert publication.taken == []
