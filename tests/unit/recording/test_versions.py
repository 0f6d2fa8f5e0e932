"""The index of metadata versions: quick where it is there, and never anything but quick."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorpool import durable, recording
from tensorpool.client.metadata import SourceDescription
from tensorpool.clock import ManualClock
from tensorpool.recording import metadata, metadata_index, tables
from tensorpool.recording.layout import unsigned
from tensorpool.recording.metadata import MetadataReader
from tensorpool.recording.tables import TableWriter, read_table
from tensorpool.sbe import DataSourceAnnounce, DataSourceMeta, TraceLinkSet, decode
from tests.unit.recording.conftest import STREAM, Writing

ASKED = [
    (stream, epoch, version) for stream in (7, STREAM) for epoch in (1, 2, 2**63) for version in (1, 2, 3)
]


def meta(version: int, gain: int, stream_id: int = STREAM) -> bytes:
    description = SourceDescription(metadata={"gain": gain})
    description.bump(gain)
    told = decode(description.messages(stream_id)[1])
    assert isinstance(told, DataSourceMeta)
    return replace(told, meta_version=version).encode()


def announce(epoch: int, stream_id: int = STREAM) -> bytes:
    return DataSourceAnnounce(stream_id=stream_id, producer_id=1, epoch=epoch, meta_version=1).encode()


LINKS = TraceLinkSet(stream_id=STREAM, epoch=1, seq=3, trace_id=9, parents=()).encode()


def gain(of: MetadataReader, version: int) -> object:
    """What the version says; None if nobody said anything."""
    told = of.of(STREAM, 1, version)
    return None if told is None else told[0]["gain"]


def index_files(root: Path) -> list[Path]:
    return sorted(root.glob(f"_tables/metadata/*{metadata_index.SUFFIX}"))


def told(of: MetadataReader) -> dict[tuple[int, int, int], dict[str, Any]]:
    found = {key: of.of(*key) for key in ASKED}
    return {key: {**one[0], "at": one[0].timestamp_ns} for key, one in found.items() if one is not None}


def expected(root: Path) -> dict[tuple[int, int, int], dict[str, Any]]:
    """The same from the whole table, row by row."""
    rows = sorted(read_table(root, "metadata").to_pylist(), key=lambda row: int(row["receive_time_ns"]))
    known: dict[tuple[int, int | None, int], DataSourceMeta] = {}
    epochs: dict[int, int] = {}
    for row in rows:
        message = decode(row["message"])
        if isinstance(message, DataSourceAnnounce):
            epochs[row["stream_id"]] = message.epoch
        elif isinstance(message, DataSourceMeta):
            epoch = epochs.get(row["stream_id"]) if row["epoch"] is None else unsigned(row["epoch"])
            known[row["stream_id"], epoch, message.meta_version] = message
    found = {key: known.get(key) or known.get((key[0], None, key[2])) for key in ASKED}
    # The timestamp is the gain, which tells one from another.
    return {
        key: {"gain": one.timestamp_ns, "at": one.timestamp_ns}
        for key, one in found.items()
        if one is not None
    }


notes = st.one_of(
    st.tuples(
        st.just("meta"), st.sampled_from((7, STREAM)), st.sampled_from((None, 1, 2, 2**63)), st.integers(1, 3)
    ),
    st.tuples(st.just("announce"), st.sampled_from((7, STREAM)), st.sampled_from((1, 2, 2**63)), st.just(0)),
    st.tuples(st.just("links"), st.just(STREAM), st.none(), st.just(0)),
    st.tuples(st.sampled_from(("flush", "session", "look", "back")), st.just(0), st.none(), st.just(0)),
)


@settings(max_examples=60)
@given(st.lists(notes, max_size=30), st.sampled_from(("as it is", "torn", "gone")))
def test_what_is_found_is_what_the_whole_table_says(
    said: list[tuple[str, int, int | None, int]], index: str
) -> None:
    with TemporaryDirectory() as directory:
        root, clock = Path(directory), ManualClock()

        def writer() -> recording.RecordingWriter:
            return recording.RecordingWriter(root, background=False, clock=clock)

        current, live = writer(), MetadataReader(root)
        for number, (what, stream_id, epoch, version) in enumerate(said):
            clock.advance(ns=1000)
            match what:
                case "meta":
                    message = meta(version, number, stream_id)
                    current.note("metadata", message, stream_id=stream_id, epoch=epoch, meta_version=version)
                case "announce":
                    assert epoch is not None
                    current.note("metadata", announce(epoch, stream_id), stream_id=stream_id, epoch=epoch)
                case "links":
                    current.note("metadata", LINKS, stream_id=stream_id, epoch=1)
                case "flush":
                    current.flush()
                case "session":
                    current.close()
                    current = writer()
                case "look":
                    current.flush()
                    live.forget()
                    assert told(live) == expected(root)
                case _:
                    # Set back, and so that no moment comes twice.
                    clock.step_wall(-7.001e-6)
        current.close()
        for path in index_files(root):
            if index == "gone":
                path.unlink()
            elif index == "torn":
                os.truncate(path, path.stat().st_size * 2 // 3)
        assert told(MetadataReader(root)) == expected(root)
        live.forget()
        assert told(live) == expected(root)


def many(root: Path, count: int, *, links: int = 0) -> None:
    """So many versions, and links between them, a batch each."""
    root.mkdir(exist_ok=True)
    writer = TableWriter(root, "session")
    for version in range(1, count + 1):
        row = {
            "receive_time_ns": version,
            "stream_id": STREAM,
            "epoch": 1,
            "meta_version": version,
            "json": None,
        }
        writer.add("metadata", row | {"kind": "DataSourceMeta", "message": meta(version, version)})
        writer.flush()
        for _ in range(links):
            writer.add("metadata", row | {"kind": "TraceLinkSet", "message": LINKS, "meta_version": None})
            writer.flush()
    writer.close()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many batches of tables were read, look by look."""
    counted: list[int] = []
    original = tables.placed_batches

    def counting(*arguments: Any) -> Any:
        found = original(*arguments)
        counted.append(len(found))
        return found

    monkeypatch.setattr(tables, "placed_batches", counting)
    monkeypatch.setattr(metadata, "placed_batches", counting)
    return counted


@pytest.mark.parametrize(("count", "links"), [(3, 0), (200, 0), (3, 400)])
def test_however_much_was_said_one_batch_is_read_for_a_version(
    count: int, links: int, tmp_path: Path, reads: list[int]
) -> None:
    many(tmp_path, count, links=links)
    found = MetadataReader(tmp_path)
    assert gain(found, 2) == 2
    assert sum(reads) == 1
    # Asked again, and after a look that finds nothing new.
    found.of(STREAM, 1, 2)
    found.forget()
    found.of(STREAM, 1, 2)
    assert sum(reads) == 1


def test_a_writer_that_died_leaves_little_to_read(tmp_path: Path, reads: list[int]) -> None:
    many(tmp_path, 3, links=400)
    (path,) = index_files(tmp_path)
    # Without what its end says of how far it reaches.
    os.truncate(path, path.stat().st_size - metadata_index.RECORD.itemsize)
    assert gain(MetadataReader(tmp_path), 3) == 3
    assert 1 < sum(reads) < 100


def test_what_follows_is_read_and_nothing_twice(writing: Writing, root: Path, reads: list[int]) -> None:
    with writing() as writer:
        found = MetadataReader(root)
        for version in range(1, 20):
            writer.note("metadata", meta(version, version), stream_id=STREAM, epoch=1)
            writer.flush()
            found.forget()
            assert gain(found, version) == version
        assert sum(reads) == 19


@pytest.mark.parametrize("at", [0, 70, 127, 128])
def test_a_changed_index_is_not_believed(at: int, tmp_path: Path) -> None:
    many(tmp_path, 4)
    (path,) = index_files(tmp_path)
    content = bytearray(path.read_bytes())
    content[at] ^= 0xFF
    path.write_bytes(content)
    found = MetadataReader(tmp_path)
    for version in range(1, 5):
        assert gain(found, version) == version


def test_what_a_crash_took_from_the_table_is_not_there_whatever_the_index_says(tmp_path: Path) -> None:
    many(tmp_path, 6)
    (path,) = index_files(tmp_path)
    records, _ = metadata_index.read_index(path.with_suffix(".arrows"), 0)
    third = records[records["meta_version"] == 3][0]
    for cut, left in ((int(third["batch_end"]), 3), (int(third["batch_end"]) - 1, 2)):
        os.truncate(path.with_suffix(".arrows"), cut)
        found = MetadataReader(tmp_path)
        known = {version: found.of(STREAM, 1, version) for version in range(1, 7)}
        assert [version for version, one in known.items() if one is not None] == [*range(1, left + 1)]
        # What comes there later is another matter.
        assert all(one[0] == {"gain": version} for version, one in known.items() if one is not None)


def test_an_index_of_another_table_leads_nowhere(tmp_path: Path) -> None:
    """Its checksums hold, and what it says is wrong: nothing is made up."""
    many(tmp_path / "one", 8)
    many(tmp_path / "other", 5, links=2)
    (path,), (other,) = index_files(tmp_path / "one"), index_files(tmp_path / "other")
    shutil.copy(path, other)
    found = MetadataReader(tmp_path / "other")
    for version in range(1, 9):
        answer = found.of(STREAM, 1, version)
        assert answer is None or answer[0] == {"gain": version}


def test_where_the_index_finds_no_room_the_rows_are_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = durable.write_all
    is_full = True

    def full(fd: int, parts: Any) -> int:
        if is_full:
            raise OSError(errno.ENOSPC, "no room")
        return original(fd, parts)

    monkeypatch.setattr(metadata_index, "write_all", full)
    writer = TableWriter(tmp_path, "session")
    row = {"receive_time_ns": 1, "stream_id": STREAM, "epoch": 1, "meta_version": 1, "json": None}
    for version in (1, 2, 3):
        is_full = version < 3
        writer.add("metadata", row | {"kind": "DataSourceMeta", "message": meta(version, version)})
        writer.flush()
        (path,) = index_files(tmp_path)
        assert (path.stat().st_size == 0) == is_full
        assert read_table(tmp_path, "metadata").num_rows == version
        assert gain(MetadataReader(tmp_path), version) == version
    writer.close()
    records, _ = metadata_index.read_index(path.with_suffix(".arrows"), 0)
    assert records["kind"].tolist() == [metadata_index.Kind.META, metadata_index.Kind.REACH] * 3
