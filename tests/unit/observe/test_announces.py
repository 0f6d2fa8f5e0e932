"""Which streams there are, by what was announced when."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorpool import sbe
from tensorpool.monitor import StreamBook, announces

S = 1_000_000_000
URI = "shm:file?path=/dev/shm/tensorpool-a/default/7/{epoch}/header.ring"


def announce(
    stream_id: int = 7, epoch: int = 5, at_ns: int = 0, producer_id: int = 3, **changes: object
) -> bytes:
    fields: dict = {
        "stream_id": stream_id,
        "producer_id": producer_id,
        "epoch": epoch,
        "announce_timestamp_ns": at_ns,
        "announce_clock_domain": sbe.ClockDomain.MONOTONIC,
        "layout_version": 1,
        "header_nslots": 8,
        "header_slot_bytes": 256,
        "payload_pools": (sbe.PayloadPool(pool_id=1, pool_nslots=8, stride_bytes=64, region_uri="u"),),
        "header_region_uri": URI.format(epoch=epoch),
    }
    return sbe.ShmPoolAnnounce(**(fields | changes)).encode()


def book() -> StreamBook:
    return StreamBook(forget_after_ns=3 * S)


def test_streams_are_listed_by_id_with_their_newest_epoch() -> None:
    heard = book()
    heard.hear(announce(9, at_ns=S), S)
    heard.hear(announce(7, epoch=5, at_ns=S), S)
    heard.hear(announce(7, epoch=6, at_ns=S), S)
    heard.hear(announce(7, epoch=5, at_ns=S), S)
    found = heard.streams(S)
    assert [(one.stream_id, one.epoch) for one in found] == [(7, 6), (9, 5)]
    assert found[0].directory == Path("/dev/shm/tensorpool-a/default/7/6")
    assert found[0].total_bytes == 64 + 8 * 256 + 64 + 8 * 64


def test_what_is_no_longer_announced_is_forgotten() -> None:
    heard = book()
    heard.hear(announce(at_ns=S), S)
    assert [one.age_ns(2 * S) for one in heard.streams(2 * S)] == [S]
    assert heard.streams(4 * S + 1) == []
    # Even a lower epoch counts again once the higher one is silent.
    heard.hear(announce(epoch=4, at_ns=5 * S), 5 * S)
    assert [one.epoch for one in heard.streams(5 * S)] == [4]


def test_an_announce_that_waited_too_long_is_not_believed() -> None:
    heard = book()
    heard.hear(announce(at_ns=S), 10 * S)
    assert heard.streams(10 * S) == []
    heard.hear(announce(at_ns=S, announce_clock_domain=sbe.ClockDomain.REALTIME_SYNCED), 10 * S)
    assert [one.age_ns(11 * S) for one in heard.streams(11 * S)] == [S]


def test_names_come_from_data_sources_and_foreign_bytes_are_counted() -> None:
    heard = book()
    heard.hear(announce(producer_id=0, at_ns=S), S)
    source = sbe.DataSourceAnnounce(stream_id=7, producer_id=3, epoch=5, meta_version=1, name="camera")
    heard.hear(source.encode(), S)
    heard.hear(b"nonsense", S)
    heard.hear(sbe.QosProducer(stream_id=7, producer_id=3, epoch=5, current_seq=1).encode(), S)
    (one,) = heard.streams(S)
    assert (one.name, one.has_producer, heard.malformed) == ("camera", False, 1)
    shown = one.as_json(S)
    assert (shown["epoch"], shown["producer_id"], shown["name"]) == ("5", None, "camera")


def test_an_announce_from_the_future_is_forgotten_as_any_other() -> None:
    heard = book()
    heard.hear(announce(at_ns=1000 * S), S)
    assert [one.age_ns(2 * S) for one in heard.streams(2 * S)] == [S]
    assert heard.streams(4 * S + 1) == []


def test_streams_and_names_that_are_made_up_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announces, "_MOST", 10)
    heard = book()
    for stream_id in (*range(1, 20), 10):
        heard.hear(announce(stream_id, at_ns=S), S)
        source = sbe.DataSourceAnnounce(
            stream_id=stream_id, producer_id=3, epoch=5, meta_version=1, name=f"n{stream_id}"
        )
        heard.hear(source.encode(), S)
    heard.hear(announce(99, at_ns=S), S)
    found = heard.streams(S)
    # The one that was heard again has stayed.
    assert [one.stream_id for one in found] == [10, *range(12, 20), 99]
    assert found[0].name == "n10"
    assert len(heard._names) == 10
