"""Metadata by version, links between traces, and clock anchors of recordings."""

from __future__ import annotations

import json
import time
from pathlib import Path

from tensorpool import recording
from tensorpool.recording.tables import read_batches, read_table
from tensorpool.sbe import DataSourceAnnounce, TraceLinkSet
from tensorpool.sbe.trace import TraceParent
from tests.unit.pipeline.harness import Stages, define, frame, table


def test_frames_have_their_metadata_version_and_latency(tmp_path: Path) -> None:
    root = tmp_path / "recording"
    late_ns = 3_000_000
    with recording.RecordingWriter(root) as writer:
        for version, name in ((1, "red"), (2, "blue")):
            fields = DataSourceAnnounce(stream_id=10, producer_id=1, epoch=1, meta_version=version, name=name)
            writer.add_message("metadata", fields.encode(), stream_id=10, epoch=1, meta_version=version)
        for seq, version in enumerate((1, 2, 3)):
            wall, monotonic = time.time_ns(), time.monotonic_ns()
            writer.append(
                frame(seq), stream_id=10, epoch=1, seq=seq, meta_version=version,
                publish_timestamp_ns=monotonic - late_ns, receive_time_ns=wall,
            )  # fmt: skip
    settings = define(root, tmp_path / "tables")
    Stages(settings).take_all()
    rows = sorted(table(settings, "silver/frames"), key=lambda row: row["seq"])
    names = [row["metadata"] and json.loads(row["metadata"])["DataSourceAnnounce"]["name"] for row in rows]
    assert names == ["red", "blue", None]
    # The clocks were read one after the other, on a machine that may be busy.
    assert all(late_ns - 1_000_000_000 < row["latency_ns"] < late_ns + 1_000_000_000 for row in rows)
    (quality,) = table(settings, "gold/quality")
    assert quality["latency_ns_max"] == max(row["latency_ns"] for row in rows)
    assert len(table(settings, "bronze/metadata")) == 2


def test_frame_with_several_parents_is_below_the_deepest(tmp_path: Path) -> None:
    root = tmp_path / "recording"
    with recording.RecordingWriter(root) as writer:
        for stream, trace, at in ((10, 5, 100), (11, 5, 110), (12, 6, 105), (13, 9, 120)):
            writer.append(
                frame(0),
                stream_id=stream,
                epoch=1,
                seq=0,
                timestamp_ns=at,
                trace_id=trace,
                receive_time_ns=10**18,
            )
        parents = (TraceParent(trace_id=5), TraceParent(trace_id=6))
        links = TraceLinkSet(stream_id=13, epoch=1, seq=0, trace_id=9, parents=parents)
        writer.add_message("metadata", links.encode(), stream_id=13, epoch=1)
    settings = define(root, tmp_path / "tables")
    Stages(settings).take_all()
    depth = {row["stream_id"]: row["lineage_depth_max"] for row in table(settings, "gold/quality")}
    assert depth == {10: 1, 11: 2, 12: 1, 13: 3}


def test_table_is_read_from_the_last_offset(tmp_path: Path) -> None:
    root, place, found = tmp_path / "recording", 0, []
    with recording.RecordingWriter(root) as writer:
        for number in range(5):
            fields = DataSourceAnnounce(stream_id=10, producer_id=1, epoch=1, meta_version=number)
            writer.add_message("metadata", fields.encode(), stream_id=10, meta_version=number)
            writer.flush()
            (path,) = (root / "_tables" / "metadata").glob("*.arrows")
            batches, place = read_batches(path, place)
            found += [version for batch in batches for version in batch["meta_version"].to_pylist()]
    assert found == [0, 1, 2, 3, 4] == read_table(root, "metadata")["meta_version"].to_pylist()
    assert read_batches(path, place) == ([], place)
