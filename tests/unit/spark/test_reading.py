"""Rows of a batch read: inline payloads, references, gaps, and damage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql.types import LongType, StringType, StructType

from tensorpool import recording
from tensorpool.errors import ConfigError, CorruptRecording, NotARecording
from tensorpool.spark import tensors
from tensorpool.spark.options import spark_schema
from tensorpool.spark.reader import FrameReader
from tests.unit.spark.conftest import (
    STREAM_ID,
    add,
    batch_reader,
    half_of,
    options,
    read,
    rows_of,
    tensor,
    write,
)


def seqs(rows: list[dict[str, Any]]) -> list[int]:
    return [row["seq"] for row in rows if row.get("gap_count") is None]


def gaps(rows: list[dict[str, Any]]) -> list[tuple[int, int, int, str]]:
    found = [row for row in rows if row["gap_count"] is not None]
    return [(row["epoch"], row["seq"], row["gap_count"], row["gap_reason"]) for row in found]


@pytest.mark.parametrize("shape", [(4, 8), (3, 5)], ids=["multiple of 64", "padded"])
def test_payloads_are_equal_inline_and_by_reference(root: Path, shape: tuple[int, ...]) -> None:
    write(root, range(25), shape=shape)
    by_value, by_reference = read(root, payload="inline"), read(root)
    assert seqs(by_value) == seqs(by_reference) == list(range(25))
    for inline, reference in zip(by_value, by_reference, strict=True):
        expected = tensor(inline["seq"], shape)
        assert inline["payload"] == expected.tobytes()
        assert np.array_equal(tensors.to_numpy(inline), expected)
        assert np.array_equal(tensors.to_numpy(reference), expected)
        common = set(inline) & set(reference)
        assert {key: inline[key] for key in common} == {key: reference[key] for key in common}
    first = by_reference[0]
    assert (first["stream_id"], first["epoch"], first["dtype"], first["shape"]) == (
        STREAM_ID,
        1,
        "uint16",
        list(shape),
    )
    assert first["trace_id"] is None


def test_reader_returns_only_selected_columns(root: Path) -> None:
    write(root, range(3))
    chosen = options(root, payload="inline")
    schema = StructType().add("seq", LongType()).add("dtype", StringType())
    reader = FrameReader(chosen, schema)
    assert rows_of(reader.partitions(), reader.read) == [{"seq": seq, "dtype": "uint16"} for seq in range(3)]


@pytest.mark.parametrize(
    ("column", "kind", "message"),
    [
        ("sec", LongType(), "no column sec; did you mean seq?"),
        ("seq", StringType(), "column seq is bigint, not string"),
        ("payload", LongType(), "column payload needs option payload inline"),
        ("gap_count", LongType(), "needs option includeGaps"),
    ],
)
def test_schema_that_does_not_match_is_rejected(root: Path, column: str, kind: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        FrameReader(options(root), StructType().add(column, kind))
    assert message in str(caught.value)


def test_read_of_a_directory_without_a_recording_fails(tmp_path: Path) -> None:
    with pytest.raises(NotARecording, match="nothing-here contains no recording"):
        read(tmp_path / "nothing-here")


def test_batch_read_is_limited_by_offsets_and_times(root: Path) -> None:
    write(root, range(30))
    start, end = '{"10000": {"epoch": 1, "seq": 7}}', '{"10000": {"epoch": 1, "seq": 12}}'
    assert seqs(read(root, startingOffsets=start, endingOffsets=end)) == [7, 8, 9, 10, 11]
    assert seqs(read(root, startingOffsets="latest")) == []
    assert seqs(read(root, startingTimestamp=21_000, endingTimestamp=24_000)) == [20, 21, 22]
    assert seqs(read(root, streams="77")) == []


def test_stream_without_an_offset_is_read_whole(root: Path) -> None:
    write(root, range(30))
    write(root, range(30), stream_id=STREAM_ID + 1)

    def found(**given: str) -> dict[int, list[int]]:
        rows = read(root, **given)
        return {one: seqs([row for row in rows if row["stream_id"] == one]) for one in (10_000, 10_001)}

    every = list(range(30))
    assert found(endingOffsets='{"10000": {"epoch": 1, "seq": 3}}') == {10_000: [0, 1, 2], 10_001: every}
    assert found(startingOffsets='{"10000": {"epoch": 1, "seq": 27}}') == {
        10_000: [27, 28, 29],
        10_001: every,
    }
    assert found(startingOffsets='{"10000": "latest"}') == {10_000: [], 10_001: every}
    assert found(endingOffsets='{"10000": "earliest"}') == {10_000: [], 10_001: every}
    # Option streams determines which streams are read.
    only = found(streams="10000", endingOffsets='{"10001": {"epoch": 1, "seq": 3}}')
    assert only == {10_000: every, 10_001: []}


def test_removed_frames_of_a_stream_without_an_offset_are_no_loss(root: Path) -> None:
    write(root, range(30))
    write(root, range(30), stream_id=STREAM_ID + 1)
    recording.apply_retention(root, max_bytes=half_of(root))
    left = {one: seqs(read(root, streams=one)) for one in (10_000, 10_001)}
    assert all(0 < len(one) < 30 for one in left.values())
    named = '{"10000": {"epoch": 1, "seq": 29}}'
    assert sorted(seqs(read(root, startingOffsets=named))) == sorted([29, *left[10_001]])


def test_open_segment_is_read_to_its_present_end(root: Path) -> None:
    with recording.RecordingWriter(root, background=False) as writer:
        add(writer, range(5))
        rows = read(root)
        assert seqs(rows) == list(range(5))
        add(writer, range(5, 9))
        assert seqs(read(root)) == list(range(9))
    # The reference has the final name of the segment.
    assert np.array_equal(tensors.to_numpy(rows[4]), tensor(4))


def test_arrow_batches_respect_their_byte_limit(root: Path) -> None:
    write(root, range(40), per_segment=40, shape=(32, 32))
    reader = batch_reader(root, payload="inline", maxBatchBytes=10_000)
    batches = [batch for one in reader.partitions() for batch in reader.read(one)]
    # Small batches may be combined, but never above a mebibyte.
    assert sum(len(batch) for batch in batches) == 40
    assert max(batch.nbytes for batch in batches) < 1 << 20
    large = batch_reader(root, payload="inline", maxBatchBytes=1)
    assert sum(len(batch) for one in large.partitions() for batch in large.read(one)) == 40


def test_gap_rows_have_their_reasons(root: Path) -> None:
    with recording.RecordingWriter(root, background=False) as writer:
        add(writer, [0, 1, 2])
        writer.gap(stream_id=STREAM_ID, epoch=1, first_seq=3, count=2, reason="overrun")
        add(writer, [5, 6, 9])
        writer.rotate()
        add(writer, [12])
        writer.gap(stream_id=STREAM_ID, epoch=1, first_seq=13, count=4, reason="disk_full")
        add(writer, [0, 1], epoch=2)
    expected = [
        (1, 3, 2, "overrun"),
        (1, 7, 2, "unexplained"),
        (1, 10, 2, "unexplained"),
        (1, 13, 4, "disk_full"),
    ]
    rows = read(root, includeGaps="true")
    assert gaps(rows) == expected
    assert seqs(rows) == [0, 1, 2, 5, 6, 9, 12, 0, 1]
    # With any division into tasks, every gap is reported exactly once.
    for parts in (2, 3, 7, 50):
        assert sorted(gaps(read(root, includeGaps="true", minPartitions=parts))) == expected, parts


def damage(root: Path, number: int, at: float) -> Path:
    path = sorted(root.glob("stream=*/epoch=*/*.arrows"))[number]
    content = bytearray(path.read_bytes())
    content[int(len(content) * at)] ^= 0xFF
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("payload", ["inline", "ref"])
def test_damaged_batch_is_an_error_or_a_gap(root: Path, payload: str) -> None:
    write(root, range(30))
    path = damage(root, 1, 0.1 if payload == "ref" else 0.95)
    with pytest.raises(CorruptRecording, match="failOnDataLoss=false") as caught:
        read(root, payload=payload)
    assert path.name in str(caught.value)
    rows = read(root, payload=payload, failOnDataLoss="false", includeGaps="true")
    lost = [
        seq
        for _, first, count, reason in gaps(rows)
        for seq in range(first, first + count)
        if reason == "corrupt"
    ]
    assert lost
    assert sorted(seqs(rows) + lost) == list(range(30))
    assert set(lost) <= set(range(10, 20))


def test_removed_segment_is_an_error_or_a_gap(root: Path) -> None:
    write(root, range(30))
    sorted(root.glob("stream=*/epoch=*/*.arrows"))[1].unlink()
    with pytest.raises(CorruptRecording, match="does not exist"):
        read(root)
    rows = read(root, failOnDataLoss="false", includeGaps="true")
    assert gaps(rows) == [(1, 10, 10, "removed")]
    assert seqs(rows) == [*range(10), *range(20, 30)]


def test_removed_frames_are_an_error_only_within_the_offsets(root: Path) -> None:
    write(root, range(30))
    recording.apply_retention(root, max_bytes=half_of(root))
    left = seqs(read(root))
    assert left
    assert left[0] > 0
    start = '{"10000": {"epoch": 1, "seq": 0}}'
    with pytest.raises(CorruptRecording, match=f"retention removed frames 0 to {left[0] - 1}"):
        read(root, startingOffsets=start)
    rows = read(root, startingOffsets=start, failOnDataLoss="false", includeGaps="true")
    assert gaps(rows) == [(1, 0, left[0], "removed")]
    assert seqs(rows) == left


def test_schema_has_the_columns_of_the_options(root: Path) -> None:
    assert spark_schema(options(root)).names[-2:] == ["segment", "payload_offset"]
    assert spark_schema(options(root, payload="inline")).names[-1] == "payload"
    assert spark_schema(options(root, payload="none", includeGaps="true")).names[-3:] == [
        "crc32c",
        "gap_count",
        "gap_reason",
    ]


def lossy(root: Path) -> list[tuple[int, int, int, str]]:
    """A recording with gaps before its first row, behind its last, and an epoch of gaps alone."""
    with recording.RecordingWriter(root, background=False) as writer:
        writer.gap(stream_id=STREAM_ID, epoch=1, first_seq=0, count=10, reason="late")
        add(writer, range(10, 14))
        writer.gap(stream_id=STREAM_ID, epoch=1, first_seq=14, count=2, reason="late")
        add(writer, range(16, 20))
        writer.gap(stream_id=STREAM_ID, epoch=2, first_seq=5, count=3, reason="overrun")
    return [(1, 0, 10, "late"), (1, 14, 2, "late"), (2, 5, 3, "overrun")]


def test_gaps_before_the_first_row_and_behind_the_last_are_rows(root: Path) -> None:
    expected = lossy(root)
    first, second = recording.open(root).ledgers()
    assert [str(first), str(second)] == ["span 20 = rows 8 + late 12", "span 3 = rows 0 + overrun 3"]
    rows = read(root, includeGaps="true")
    assert (gaps(rows), seqs(rows)) == (expected, [*range(10, 14), *range(16, 20)])
    for parts in (2, 8):
        assert sorted(gaps(read(root, includeGaps="true", minPartitions=parts))) == expected, parts
    assert seqs(read(root)) == [*range(10, 14), *range(16, 20)]


def test_streaming_reports_gaps_without_rows(root: Path, stream_reader: Any) -> None:
    expected = lossy(root)
    reader = stream_reader(root, includeGaps="true", maxRowsPerTrigger=3)
    at, found, read_seqs = reader.initialOffset(), [], []
    while (end := reader.latestOffset(at, reader.getDefaultReadLimit())) != at:
        rows = rows_of(reader.partitions(at, end), reader.read)
        found += gaps(rows)
        read_seqs += seqs(rows)
        at = end
    assert (found, read_seqs) == (expected, [*range(10, 14), *range(16, 20)])


def test_receive_time_is_a_timestamp_on_request(root: Path) -> None:
    write(root, [0, 1, 3])
    plain = read(root)
    assert "time" not in plain[0]
    rows = read(root, includeTime="true", includeGaps="true")
    times = {row["seq"]: row["time"] for row in rows if row["gap_count"] is None}
    for row in plain:
        assert times[row["seq"]].timestamp() * 1e6 == pytest.approx(row["receive_time_ns"] // 1_000, abs=1)
    # A gap has no receive time.
    assert [row["time"] for row in rows if row["gap_count"] is not None] == [None]
