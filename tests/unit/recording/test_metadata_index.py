"""The index of metadata versions makes lookups faster and never changes their result."""

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
from tensorpool.recording import metadata_index, table_index, tables
from tensorpool.recording.arrow_format import MessageTableRow
from tensorpool.recording.layout import unsigned
from tensorpool.recording.metadata import MetadataReader
from tensorpool.recording.tables import TableWriter, read_table
from tensorpool.sbe import DataSourceAnnounce, DataSourceMeta, TraceLinkSet, decode
from tests.unit.recording.conftest import STREAM, WriterFactory

KEYS = [
    (stream, epoch, version) for stream in (7, STREAM) for epoch in (1, 2, 2**63) for version in (1, 2, 3)
]


def meta(version: int, gain: int, stream_id: int = STREAM) -> bytes:
    description = SourceDescription(metadata={"gain": gain})
    description.bump(gain)
    message = decode(description.messages(stream_id)[1])
    assert isinstance(message, DataSourceMeta)
    return replace(message, meta_version=version).encode()


def announce(epoch: int, stream_id: int = STREAM) -> bytes:
    return DataSourceAnnounce(stream_id=stream_id, producer_id=1, epoch=epoch, meta_version=1).encode()


LINKS = TraceLinkSet(stream_id=STREAM, epoch=1, seq=3, trace_id=9, parents=()).encode()


def gain(reader: MetadataReader, version: int) -> object:
    """The gain of a version; None if there is none."""
    found = reader.find(STREAM, 1, version)
    return None if found is None else found.attributes["gain"]


def index_files(root: Path) -> list[Path]:
    return sorted(root.glob(f"_tables/metadata/*{metadata_index.SUFFIX}"))


def all_metadata(reader: MetadataReader) -> dict[tuple[int, int, int], dict[str, Any]]:
    """The metadata of all keys that have any."""
    found = {key: reader.find(*key) for key in KEYS}
    return {
        key: {**version.attributes, "at": version.attributes.timestamp_ns}
        for key, version in found.items()
        if version is not None
    }


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
    found = {key: known.get(key) or known.get((key[0], None, key[2])) for key in KEYS}
    # The timestamp equals the gain, which identifies a message.
    return {
        key: {"gain": message.timestamp_ns, "at": message.timestamp_ns}
        for key, message in found.items()
        if message is not None
    }


steps = st.one_of(
    st.tuples(
        st.just("meta"), st.sampled_from((7, STREAM)), st.sampled_from((None, 1, 2, 2**63)), st.integers(1, 3)
    ),
    st.tuples(st.just("announce"), st.sampled_from((7, STREAM)), st.sampled_from((1, 2, 2**63)), st.just(0)),
    st.tuples(st.just("links"), st.just(STREAM), st.none(), st.just(0)),
    st.tuples(st.sampled_from(("flush", "session", "read", "clock back")), st.just(0), st.none(), st.just(0)),
)


@settings(max_examples=60)
@given(st.lists(steps, max_size=30), st.sampled_from(("intact", "torn", "missing")))
def test_reader_with_index_equals_the_whole_table(
    actions: list[tuple[str, int, int | None, int]], index: str
) -> None:
    with TemporaryDirectory() as directory:
        root, clock = Path(directory), ManualClock()

        def writer() -> recording.RecordingWriter:
            return recording.RecordingWriter(root, background=False, clock=clock)

        current, live = writer(), MetadataReader(root)
        for number, (action, stream_id, epoch, version) in enumerate(actions):
            clock.advance(ns=1000)
            match action:
                case "meta":
                    message = meta(version, number, stream_id)
                    current.add_message(
                        "metadata", message, stream_id=stream_id, epoch=epoch, meta_version=version
                    )
                case "announce":
                    assert epoch is not None
                    message = announce(epoch, stream_id)
                    current.add_message("metadata", message, stream_id=stream_id, epoch=epoch)
                case "links":
                    current.add_message("metadata", LINKS, stream_id=stream_id, epoch=1)
                case "flush":
                    current.flush()
                case "session":
                    current.close()
                    current = writer()
                case "read":
                    current.flush()
                    live.invalidate()
                    assert all_metadata(live) == expected(root)
                case _:
                    # The clock is set back, but no time occurs twice.
                    clock.step_wall(-7.001e-6)
        current.close()
        for path in index_files(root):
            if index == "missing":
                path.unlink()
            elif index == "torn":
                os.truncate(path, path.stat().st_size * 2 // 3)
        assert all_metadata(MetadataReader(root)) == expected(root)
        live.invalidate()
        assert all_metadata(live) == expected(root)


def write_versions(root: Path, count: int, *, links: int = 0) -> None:
    """Writes `count` versions with `links` trace links after each, one batch per message."""
    root.mkdir(exist_ok=True)
    writer = TableWriter(root, "session")
    for version in range(1, count + 1):
        row: MessageTableRow = {
            "receive_time_ns": version,
            "stream_id": STREAM,
            "epoch": 1,
            "meta_version": version,
            "kind": "DataSourceMeta",
            "message": meta(version, version),
            "json": None,
        }
        writer.add("metadata", row)
        writer.flush()
        for _ in range(links):
            writer.add("metadata", {**row, "kind": "TraceLinkSet", "message": LINKS, "meta_version": None})
            writer.flush()
    writer.close()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of table batches of each read."""
    counted: list[int] = []
    original = tables.scan_table

    def counting(content: bytes, **options: Any) -> tables.TableScan:
        found = original(content, **options)
        counted.append(len(found.located))
        return found

    monkeypatch.setattr(tables, "scan_table", counting)
    return counted


@pytest.mark.parametrize(("count", "links"), [(3, 0), (200, 0), (3, 400)])
def test_lookup_reads_one_batch_of_any_table(
    count: int, links: int, tmp_path: Path, reads: list[int]
) -> None:
    write_versions(tmp_path, count, links=links)
    found = MetadataReader(tmp_path)
    assert gain(found, 2) == 2
    assert sum(reads) == 1
    # Requested again, and after an update without new rows.
    found.find(STREAM, 1, 2)
    found.invalidate()
    found.find(STREAM, 1, 2)
    assert sum(reads) == 1


def test_index_of_a_crashed_writer_leaves_little_to_read(tmp_path: Path, reads: list[int]) -> None:
    write_versions(tmp_path, 3, links=400)
    (path,) = index_files(tmp_path)
    # Without the REACH record at its end.
    os.truncate(path, path.stat().st_size - metadata_index.RECORD.itemsize)
    assert gain(MetadataReader(tmp_path), 3) == 3
    assert 1 < sum(reads) < 100


def test_new_rows_are_read_once(make_writer: WriterFactory, root: Path, reads: list[int]) -> None:
    with make_writer() as writer:
        found = MetadataReader(root)
        for version in range(1, 20):
            writer.add_message("metadata", meta(version, version), stream_id=STREAM, epoch=1)
            writer.flush()
            found.invalidate()
            assert gain(found, version) == version
        assert sum(reads) == 19


@pytest.mark.parametrize("at", [0, 70, 127, 128])
def test_damaged_index_is_not_used(at: int, tmp_path: Path) -> None:
    write_versions(tmp_path, 4)
    (path,) = index_files(tmp_path)
    content = bytearray(path.read_bytes())
    content[at] ^= 0xFF
    path.write_bytes(content)
    found = MetadataReader(tmp_path)
    for version in range(1, 5):
        assert gain(found, version) == version


def test_rows_lost_in_a_crash_are_not_found_through_the_index(tmp_path: Path) -> None:
    write_versions(tmp_path, 6)
    (path,) = index_files(tmp_path)
    records, _ = metadata_index.read_index(path.with_suffix(".arrows"), 0)
    third = records[records["meta_version"] == 3][0]
    # After a sync such a loss would be damage.
    table_index.index_path(tmp_path, path.stem).unlink()
    for cut, left in ((int(third["batch_end"]), 3), (int(third["batch_end"]) - 1, 2)):
        os.truncate(path.with_suffix(".arrows"), cut)
        reader = MetadataReader(tmp_path)
        known = {version: reader.find(STREAM, 1, version) for version in range(1, 7)}
        attributes = {version: found.attributes for version, found in known.items() if found is not None}
        assert attributes == {version: {"gain": version} for version in range(1, left + 1)}


def test_index_of_another_table_yields_no_wrong_metadata(tmp_path: Path) -> None:
    """Its checksums are valid, but its positions are wrong."""
    write_versions(tmp_path / "one", 8)
    write_versions(tmp_path / "other", 5, links=2)
    (path,), (other,) = index_files(tmp_path / "one"), index_files(tmp_path / "other")
    shutil.copy(path, other)
    found = MetadataReader(tmp_path / "other")
    for version in range(1, 9):
        answer = found.find(STREAM, 1, version)
        # The table itself is read instead.
        assert (answer and answer.attributes) == ({"gain": version} if version < 6 else None)


def test_full_disk_delays_the_index_but_not_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = durable.write_all
    is_full = True

    def full(fd: int, parts: Any) -> int:
        if is_full:
            raise OSError(errno.ENOSPC, "no space")
        return original(fd, parts)

    monkeypatch.setattr(metadata_index, "write_all", full)
    writer = TableWriter(tmp_path, "session")
    for version in (1, 2, 3):
        is_full = version < 3
        row: MessageTableRow = {
            "receive_time_ns": 1,
            "stream_id": STREAM,
            "epoch": 1,
            "meta_version": 1,
            "kind": "DataSourceMeta",
            "message": meta(version, version),
            "json": None,
        }
        writer.add("metadata", row)
        writer.flush()
        (path,) = index_files(tmp_path)
        assert (path.stat().st_size == 0) == is_full
        assert read_table(tmp_path, "metadata").num_rows == version
        assert gain(MetadataReader(tmp_path), version) == version
    writer.close()
    records, _ = metadata_index.read_index(path.with_suffix(".arrows"), 0)
    kinds = [metadata_index.IndexRecordKind.META, metadata_index.IndexRecordKind.REACH]
    assert records["kind"].tolist() == kinds * 3
