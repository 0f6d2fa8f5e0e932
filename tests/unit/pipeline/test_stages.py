"""All stages over small recordings, without Spark: the rows of the tables, also after a kill."""

from __future__ import annotations

import datetime
import itertools
import json
import os
import random
import shutil
import socket
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tensorpool import recording
from tensorpool.errors import PipelineError
from tensorpool.pipeline import RerunRange, compact, status
from tensorpool.pipeline.decisions import StageTotals
from tensorpool.pipeline.delta import DeltaTables
from tensorpool.pipeline.report import collect
from tensorpool.pipeline.rerun import Rerun
from tensorpool.pipeline.tasks import LocalTasks
from tensorpool.recording.table_store import DirectoryStore
from tests.unit.pipeline.harness import (
    PERIOD_NS,
    T0,
    Killed,
    Stages,
    define,
    dies_at,
    frame,
    keys,
    record,
    table,
    tables,
)

ALIGNMENT = [{"name": "stereo", "streams": [10, 11], "tolerance": "1ms", "wait": "100ms"}]


def brightness(array: Any) -> Any:
    return array.mean(), int(array.max())


def test_frames_go_through_all_stages_once(root: Path, out: Path) -> None:
    record(root, range(200))
    record(root, [seq for seq in range(200) if seq % 10 != 3], stream_id=11, shift_ns=1000)
    settings = define(
        root, out, max_rows=100, alignments=ALIGNMENT, quality={"interval": "500ms", "lateness": "100ms"},
        functions=[{"name": "looks", "function": "a:b", "columns": "mean double, peak bigint"}],
    )  # fmt: skip
    stages = Stages(settings, looks=brightness)
    assert stages.take_all() == 4
    stages.close()
    wanted = [(10, 1, seq) for seq in range(200)] + [(11, 1, seq) for seq in range(200) if seq % 10 != 3]
    for name in ("bronze/frames", "silver/frames", "gold/looks", "gold/statistics"):
        assert keys(table(settings, name)) == wanted, name
    assert all(row["mean"] == row["seq"] == row["peak"] for row in table(settings, "gold/looks"))
    gaps = table(settings, "silver/gaps")
    assert sorted((row["first_seq"], row["count"]) for row in gaps) == [(seq, 1) for seq in range(3, 200, 10)]
    aligned = table(settings, "silver/aligned/stereo")
    assert sorted(row["frames"][0]["seq"] for row in aligned) == [seq for seq in range(200) if seq % 10 != 3]
    assert all(
        row["frames"][0]["seq"] == row["frames"][1]["seq"] and row["spread"] == 1000 for row in aligned
    )
    lonely = table(settings, "silver/unaligned/stereo")
    assert Counter(row["reason"] for row in lonely) == {"missing": 20}
    quality = table(settings, "gold/quality")
    assert sum(row["frames"] for row in quality) == 380
    assert sum(row["dropped"] for row in quality) == 20
    assert not any(row["rejected"] for row in quality)
    assert len({(row["stream_id"], row["interval_start_ns"]) for row in quality}) == len(quality)
    found = status(out)
    assert found.stages["silver"].totals == StageTotals(380, 380 * 64, missing=20)
    assert found.to_json()["stages"]["align"]["totals"] == {"stereo": {"aligned": 180, "missing": 20}}
    assert not any(found.pending.values())
    # What is carried is replaced: little of earlier micro-batches stays behind.
    assert len(list((out / "_state").iterdir())) <= 2 * 5


@pytest.mark.parametrize(
    "steps", [pytest.param(6, id="some"), pytest.param(None, id="all", marks=pytest.mark.long)]
)
@pytest.mark.timeout(600)
def test_tables_are_the_same_after_a_kill_at_any_write(
    root: Path, out: Path, monkeypatch: pytest.MonkeyPatch, steps: int | None
) -> None:
    record(root, range(60), trace=7000)
    record(root, range(0, 60, 2), stream_id=11, shift_ns=1000)
    more: dict[str, Any] = {
        "alignments": ALIGNMENT, "quality": {"interval": "100ms", "lateness": "50ms"}, "max_rows": 45,
        "functions": [{"name": "half", "function": "a:b", "output": "recording"}],
    }  # fmt: skip

    def half(array: Any) -> Any:
        return array[:2]

    def contents(settings: Any) -> dict[str, list[str]]:
        return {
            name: sorted(json.dumps(row, default=str) for row in table(settings, name))
            for name in tables(settings)
        }

    def go(settings: Any) -> None:
        stages = Stages(settings, half=half)
        stages.take_all()
        stages.close()

    whole = define(root, out, **more)
    go(whole)
    wanted = contents(whole)
    assert len(wanted["silver/frames"]) == 90
    # Every one of them, or a few that a seed chooses among the first fifty.
    chosen = itertools.count() if steps is None else sorted(random.Random(5).sample(range(50), steps))
    for step in chosen:
        settings = define(root, out.with_name(f"tables-{step}"), **more)
        dies = dies_at(step)
        with monkeypatch.context() as patch:
            for owner, name in (
                (DirectoryStore, "put_new"),
                (DirectoryStore, "create"),
                (DirectoryStore, "remove"),
                (DeltaTables, "commit"),
            ):
                patch.setattr(owner, name, dies(getattr(owner, name)))
            try:
                go(settings)
            except Killed:
                pass
            else:
                assert steps is None, f"there is no step {step}"
                break
        # What is there now may be a part, and never something twice.
        seen = keys(table(settings, "silver/frames"))
        assert len(set(seen)) == len(seen)
        go(settings)
        assert contents(settings) == wanted, f"killed at step {step}"
        with recording.open(Path(settings.out) / "derived" / "half") as opened:
            assert [one.rows for stream in opened.streams for one in opened.ledger(stream)] == [60, 30]
            assert np.array_equal(opened.frame(10, 7).array, frame(7)[:2])


def test_of_two_processes_that_race_one_stops_and_nothing_is_twice(root: Path, out: Path) -> None:
    record(root, range(100))
    settings = define(root, out, max_rows=20)
    first, second = Stages(settings), Stages(settings)

    class Overtaken(LocalTasks):
        """Runs the tasks of the first process while the second one takes the same micro-batch."""

        def run(self, work: Any, items: Any) -> Any:
            results = super().run(work, items)
            if not overtaken:
                overtaken.append(second.take())
            return results

    overtaken: list[bool] = []
    first.tasks = Overtaken()
    with pytest.raises(PipelineError, match=r"has decided micro-batch 0 in the meantime.*stop one of them"):
        first.take()
    assert overtaken == [True]
    # Each continues from the last decision, its own or the other's.
    assert first.take()
    assert second.take()
    first.take_all()
    second.take_all()
    for name in ("bronze/frames", "silver/frames", "gold/statistics"):
        assert keys(table(settings, name)) == [(10, 1, seq) for seq in range(100)], name


def test_decision_that_is_applied_twice_at_once_is_in_a_table_once(root: Path, out: Path) -> None:
    record(root, range(20))
    settings = define(root, out)
    stages = Stages(settings)
    other = DeltaTables(settings.out)
    commit = DeltaTables.commit

    def twice(self: DeltaTables, *arguments: Any, **more: Any) -> None:
        commit(self, *arguments, **more)
        commit(other, *arguments, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeltaTables, "commit", twice)
        stages.take_all()
    assert keys(table(settings, "silver/frames")) == [(10, 1, seq) for seq in range(20)]


def test_decision_is_applied_once_unless_another_process_has_made_it(
    root: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(root, range(60))
    settings = define(root, out, max_rows=20, statistics={"enabled": False}, quality={"enabled": False})
    commits: list[tuple[str, int]] = []
    commit = DeltaTables.commit

    def counted(tables: DeltaTables, table: Any, *args: Any, **more: Any) -> None:
        commits.append((table.name, more["number"]))
        commit(tables, table, *args, **more)

    monkeypatch.setattr(DeltaTables, "commit", counted)
    first, second = Stages(settings), Stages(settings)
    first.take()
    first.take()
    tables = ["bronze/frames", "silver/frames"]
    assert commits == [(name, number) for number in (0, 1) for name in tables]
    second.take()
    assert commits[4:] == [(name, number) for number in (1, 2) for name in tables]
    first.take()
    assert commits[8:] == [(name, 2) for name in tables]
    first.engine.close_sources()
    second.engine.close_sources()
    assert keys(table(settings, "silver/frames")) == [(10, 1, seq) for seq in range(60)]


def test_recording_is_added_to_a_root(root: Path, tmp_path: Path) -> None:
    record(root, range(50))
    out = tmp_path / "tables"
    Stages(define(root, out)).take_all()
    later = tmp_path / "later"
    record(later, range(50, 80))
    settings = define(root, out, recordings=[str(root), str(later)])
    Stages(settings).take_all()
    assert keys(table(settings, "silver/frames")) == [(10, 1, seq) for seq in range(80)]


def test_pipelines_with_names_share_the_tables_of_a_root(tmp_path: Path, out: Path) -> None:
    quality = {"interval": "500ms", "lateness": "100ms"}
    pipelines = {}
    for name, stream in (("east", 10), ("west", 20)):
        record(tmp_path / name, range(100), stream_id=stream)
        settings = define(tmp_path / name, out, name=name, max_rows=40, quality=quality)
        pipelines[name] = Stages(settings)
    while sum(stages.take() for stages in pipelines.values()):
        # Rows of open intervals of both, whichever was last to replace its own.
        counted: Counter[int] = Counter()
        for row in table(settings, "gold/quality"):
            counted[row["stream_id"]] += row["frames"]
        assert counted == Counter(row["stream_id"] for row in table(settings, "silver/frames"))
    for stages in pipelines.values():
        stages.engine.close_sources()
    wanted = [(stream, 1, seq) for stream in (10, 20) for seq in range(100)]
    for name in ("bronze/frames", "silver/frames", "gold/statistics"):
        assert keys(table(settings, name)) == wanted, name
    assert {status(out, name).name for name in pipelines} == {"east", "west"}
    assert [status(out, name).stages["bronze"].totals.frames for name in pipelines] == [100, 100]
    with pytest.raises(PipelineError, match=r"has several pipelines; .* east, west"):
        status(out)
    compact(out)
    assert collect(out, samples=0).faults == []
    assert sum(row["frames"] for row in table(settings, "gold/quality")) == 200
    # One that would take the same frames again is refused.
    with pytest.raises(PipelineError, match=r"pipeline east of .* reads .*/east already"):
        Stages(define(tmp_path / "east", out, name="third"))
    with pytest.raises(PipelineError, match="was created with payload = ref"):
        Stages(define(tmp_path / "other", out, name="fourth", payload="inline"))


def test_streams_of_two_hosts_with_one_id_are_distinguished_by_pipeline(tmp_path: Path, out: Path) -> None:
    shapes = {"east": (4, 8), "west": (8, 8)}
    for name, shape in shapes.items():
        record(tmp_path / name, [seq for seq in range(60) if seq != 4 + shape[0]], shape=shape)
        settings = define(tmp_path / name, out, name=name, max_rows=20, quality={"interval": "200ms"})
        Stages(settings).take_all()

    def shapes_of(rows: list[dict[str, Any]]) -> dict[tuple[str, int], tuple[int, ...]]:
        found = {(row["pipeline"], row["seq"]): tuple(row["shape"]) for row in rows}
        assert len(found) == len(rows)
        return found

    wanted = {
        (name, seq): shape for name, shape in shapes.items() for seq in range(60) if seq != 4 + shape[0]
    }
    names = ("bronze/frames", "silver/frames", "gold/statistics")
    assert [shapes_of(table(settings, name)) for name in names] == [wanted] * 3
    gaps = {(row["pipeline"], row["first_seq"]) for row in table(settings, "silver/gaps")}
    assert gaps == {("east", 8), ("west", 12)}
    counted: Counter[tuple[str, str]] = Counter()
    for row in table(settings, "gold/quality"):
        counted.update({(row["pipeline"], name): row[name] for name in ("frames", "bytes", "dropped")})
    assert counted == {
        ("east", "frames"): 59, ("east", "bytes"): 59 * 64, ("east", "dropped"): 1,
        ("west", "frames"): 59, ("west", "bytes"): 59 * 128, ("west", "dropped"): 1,
    }  # fmt: skip
    # Files with rows of both, written by one of them.
    compact(out)
    Rerun(settings, RerunRange(T0 + 5 * PERIOD_NS, T0 + 50 * PERIOD_NS)).run(LocalTasks())
    assert [shapes_of(table(settings, name)) for name in names] == [wanted] * 3


def test_pipelines_of_two_hosts_may_read_recordings_of_the_same_path(
    root: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(root, range(20))
    Stages(define(root, out, name="east")).take_all()
    monkeypatch.setattr(socket, "gethostname", lambda: "west-1")
    # The disk of the other host has another recording there.
    shutil.rmtree(root)
    record(root, range(30), stream_id=20)
    settings = define(root, out, name="west")
    Stages(settings).take_all()
    assert len(table(settings, "silver/frames")) == 50
    report = collect(out, samples=0)
    assert report.faults == []
    (unread,) = report.unread_recordings
    assert unread.startswith(f"{root} is on host ")


def test_function_may_get_a_column_and_no_other_type(root: Path, out: Path) -> None:
    record(root, range(10))

    def defined(columns: str) -> Any:
        return define(root, out, functions=[{"name": "f", "function": "a:b", "columns": columns}])

    Stages(defined("mean double"), f=lambda array: array.mean()).take_all()
    record(root, range(10, 20))
    settings = defined("mean double, peak bigint")
    Stages(settings, f=brightness).take_all()
    found = DeltaTable(f"{out}/gold/f").to_pyarrow_table().sort_by("seq").to_pylist()
    assert [row["peak"] for row in found] == [None] * 10 + list(range(10, 20))
    with pytest.raises(PipelineError, match=r"column mean .* is double.*makes it int64.*another name"):
        Stages(defined("mean bigint, peak bigint"), f=brightness)


def test_log_has_statistics_and_dates(root: Path, out: Path) -> None:
    record(root, range(30))
    settings = define(root, out)
    Stages(settings).take_all()
    found = DeltaTable(f"{out}/silver/frames")
    assert found.metadata().partition_columns == ["date"]
    (row,) = pa.table(found.get_add_actions(flatten=True)).to_pylist()
    assert (row["num_records"], row["min.seq"], row["max.seq"], row["min.stream_id"]) == (30, 0, 29, 10)
    assert row["min.time"] <= row["max.time"]
    assert row["partition.date"] == datetime.date(2023, 11, 14)
    assert row["modification_time"] > 0
    rows = found.to_pyarrow_table(filters=[("seq", ">", 27)])
    assert rows["seq"].to_pylist() == [28, 29]


def test_merged_files_are_removed_after_their_retention(root: Path, out: Path) -> None:
    settings = define(root, out, max_rows=10, compact="never", retain="2h")
    record(root, range(40))
    stages = Stages(settings)
    stages.take_all()
    name = "silver/frames"
    before = {file.path for file in DeltaTables(str(out)).files(name)}
    assert len(before) == 4
    compact(out)
    assert all((out / name / path).exists() for path in before), "a query of before may still read them"
    old = time.time() - 3 * 3_600
    for entry in sorted((out / name / "_delta_log").glob("*.json"))[-1:]:
        # As if they had been merged three hours ago.
        lines = [json.loads(line) for line in entry.read_text().splitlines()]
        for line in lines:
            if "remove" in line:
                line["remove"]["deletionTimestamp"] = int(old * 1_000)
        entry.write_text("\n".join(json.dumps(line) for line in lines))
    for checkpoint in (out / name / "_delta_log").glob("*checkpoint*"):
        checkpoint.unlink()
    assert DeltaTables(str(out)).vacuum(name, 4 * 3_600_000_000_000) == 0
    assert DeltaTables(str(out)).vacuum(name, settings.retain_ns) == 4
    assert not any((out / name / path).exists() for path in before)
    assert keys(table(settings, name)) == [(10, 1, seq) for seq in range(40)]


def test_log_is_cleaned_up_after_the_retention(root: Path, out: Path) -> None:
    def properties(name: str) -> dict[str, str]:
        return dict(DeltaTable(f"{out}/{name}").metadata().configuration)

    record(root, range(40))
    # Longer than the library keeps logs and removed files by itself.
    settings = define(root, out, max_rows=10, compact="never", retain="60d")
    stages = Stages(settings)
    stages.take_all()
    for name in stages.engine.tables:
        assert properties(name) == {
            "delta.logRetentionDuration": "interval 1440 hours",
            "delta.deletedFileRetentionDuration": "interval 1512 hours",
        }
    log = out / "silver/frames" / "_delta_log"
    # Of the creation of the table, and of four micro-batches; the retention is no version of its own.
    assert len(list(log.glob("*.json"))) == 5
    Stages(define(root, out, max_rows=10, compact="never", retain="2h")).take_all()
    assert properties("silver/frames")["delta.logRetentionDuration"] == "interval 2 hours"
    old = time.time() - 3 * 3_600
    for entry in log.glob("*.json"):
        os.utime(entry, (old, old))
    compact(out)
    # The newest entry, and a checkpoint instead of the others.
    assert len(list(log.glob("*.json"))) == 1
    assert keys(table(settings, "silver/frames")) == [(10, 1, seq) for seq in range(40)]
    assert DeltaTable(f"{out}/silver/frames").transaction_version(status(out).pipeline_id) == 3


def test_frames_of_every_epoch_count_as_behind(root: Path, out: Path) -> None:
    record(root, range(30), epoch=1)
    record(root, range(20), epoch=2)
    record(root, range(5), stream_id=11)
    stages = Stages(define(root, out, max_rows=25))
    assert stages.engine.behind() == {10: 50, 11: 5}
    stages.take()
    left = stages.engine.behind()
    assert sum(left.values()) == 30
    assert left[10] > 20, "the rest of the first epoch counts as well"
    stages.take_all()
    assert sum(stages.engine.behind().values()) == 0
    stages.engine.close_sources()


def test_merged_tables_have_every_row_once_while_the_pipeline_runs(root: Path, out: Path) -> None:
    record(root, range(120))
    settings = define(root, out, max_rows=10, compact="never")
    stages = Stages(settings)
    for _ in range(6):
        stages.take()
    results = compact(out)
    assert results["silver/frames"].to_json() == {"before": 6, "after": 1}
    stages.take_all()
    assert keys(table(settings, "silver/frames")) == [(10, 1, seq) for seq in range(120)]
    # A stage that is killed behind its decision finds its files, whatever was merged since.
    assert compact(out)["silver/frames"].after == 1
    Stages(settings).take_all()
    assert keys(table(settings, "silver/frames")) == [(10, 1, seq) for seq in range(120)]


def test_tables_of_an_earlier_version_are_recognised(root: Path, out: Path) -> None:
    record(root, range(5))
    out.mkdir()
    old = {"format": "tensorpool-pipeline", "id": "1", "definition": {}}
    versions = {"bronze": 1, "silver": 1, "gold": 1}
    (out / "pipeline.json").write_text(json.dumps({**old, "versions": versions}))
    with pytest.raises(PipelineError, match=r"an earlier tensorpool.*tensorpool pipeline migrate"):
        Stages(define(root, out))


def test_sums_of_the_tables_equal_the_ledger_with_leading_gaps(root: Path, out: Path) -> None:
    record(root, [seq for seq in range(7, 90) if seq % 11 != 5])
    record(root, range(3, 40), stream_id=11, epoch=2)
    settings = define(root, out, max_rows=25)
    Stages(settings).take_all()
    with recording.open(root) as opened:
        missing = {
            stream: sum(gap.count for gap in opened.gaps(stream)) for stream in map(int, opened.streams)
        }
        frames = {
            stream: sum(ledger.rows for ledger in opened.ledger(stream))
            for stream in map(int, opened.streams)
        }
    found: Counter[int] = Counter()
    for row in table(settings, "silver/gaps"):
        found[row["stream_id"]] += row["count"]
    assert {stream: found[stream] for stream in missing} == missing
    quality = table(settings, "gold/quality")
    for stream, count in frames.items():
        own = [row for row in quality if row["stream_id"] == stream]
        assert (sum(row["frames"] for row in own), sum(row["dropped"] for row in own)) == (
            count,
            missing[stream],
        )


def test_two_recordings_are_joined_without_duplicates_and_filled_gaps(root: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    record(root, [seq for seq in range(100) if not 20 <= seq < 30])
    record(other, [seq for seq in range(100) if not 25 <= seq < 40])
    settings = define(root, tmp_path / "tables", recordings=[str(root), str(other)], max_rows=100)
    stages = Stages(settings)
    assert stages.take_all() == 2
    assert keys(table(settings, "silver/frames")) == [
        (10, 1, seq) for seq in range(100) if not 25 <= seq < 30
    ]
    rejects = table(settings, "silver/rejects")
    assert {row["reason"] for row in rejects} == {"duplicate"}
    assert len(rejects) == 90 + 85 - 95
    assert sum(row["duplicates"] for row in table(settings, "gold/quality")) == len(rejects)
    missing = [
        seq
        for row in table(settings, "silver/gaps")
        for seq in range(row["first_seq"], row["first_seq"] + row["count"])
    ]
    assert set(range(25, 30)) <= set(missing)
    assert len(set(missing)) == len(missing), "nobody's frame is missing twice"


@pytest.mark.parametrize("payload", ["ref", "inline"])
def test_corrupt_payload_wrong_shape_and_wrong_type_are_rejected(root: Path, out: Path, payload: str) -> None:
    record(root, range(20))
    record(root, range(20, 25), shape=(2, 2))
    record(root, range(5), stream_id=11, shape=(3,))
    (segment,) = root.glob("stream=10/epoch=1/00000000000000000000.arrows")
    data = bytearray(segment.read_bytes())
    at = data.index(frame(7).tobytes())
    data[at] ^= 1
    segment.write_bytes(data)
    settings = define(
        root, out, payload=payload,
        rules=[{"streams": [10], "shape": [4, 0]}, {"streams": [11], "dtype": ["float32"]}],
    )  # fmt: skip
    Stages(settings).take_all()
    assert keys(table(settings, "silver/frames")) == [(10, 1, seq) for seq in range(20) if seq != 7]
    rejects = table(settings, "silver/rejects")
    assert Counter((row["stream_id"], row["reason"]) for row in rejects) == {
        (10, "checksum"): 1, (10, "shape"): 5, (11, "dtype"): 5,
    }  # fmt: skip
    assert next(row["detail"] for row in rejects if row["reason"] == "shape") == "[2, 2] is not [4, 0]"
    counted = Counter[str]()
    for row in table(settings, "gold/quality"):
        counted.update(dict(row["rejects"]))
    assert counted == {"checksum": 1, "shape": 5, "dtype": 5}
    if payload == "inline":
        assert {bytes(row["payload"]) for row in table(settings, "silver/frames")} == {
            frame(seq).tobytes() for seq in range(20) if seq != 7
        }


def test_frames_of_a_removed_segment_are_gaps(root: Path, out: Path) -> None:
    for first in (0, 10, 20):
        record(root, range(first, first + 10))
    settings = define(root, out)
    (root / "stream=10/epoch=1/00000000000000000010.arrows").unlink()
    Stages(settings).take_all()
    kept = [*range(10), *range(20, 30)]
    assert keys(table(settings, "silver/frames")) == [(10, 1, seq) for seq in kept]
    assert sum(row["count"] for row in table(settings, "silver/gaps")) == 10


def test_frame_of_a_closed_hole_is_late(root: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    record(root, range(0, 200, 2))
    record(other, [1, 199])
    out = tmp_path / "tables"
    Stages(define(root, out, silver={"max_runs": 16})).take_all()
    settings = define(root, out, recordings=[str(root), str(other)], silver={"max_runs": 16})
    Stages(settings).take_all()
    rejects = [(row["seq"], row["reason"]) for row in table(settings, "silver/rejects")]
    assert rejects == [(1, "late")]
    assert keys(table(settings, "silver/frames"))[-1] == (10, 1, 199), "of what is remembered it is known"
    quality = table(settings, "gold/quality")
    assert sum(row["rejected"] for row in quality) == 1
    assert sum(row["frames"] for row in quality) == 101


def test_vanished_stream_is_in_the_status_and_blocks_no_other(root: Path, out: Path) -> None:
    record(root, range(1000))
    record(root, range(10), stream_id=11, shift_ns=1000)
    settings = define(root, out, alignments=ALIGNMENT)
    stages = Stages(settings)
    stages.take_all()
    reasons = Counter(row["reason"] for row in table(settings, "silver/unaligned/stereo"))
    # Decided by the time that passed; only what is younger than `wait` still waits for it.
    assert reasons["timeout"] == 1000 - 10 - status(out).pending["stereo"] > 900
    found = status(out)
    assert found.last_frames[10] - found.last_frames[11] > 9_000_000_000
    stages.close()
    assert sum(Counter(row["reason"] for row in table(settings, "silver/unaligned/stereo")).values()) == 990


def test_lineage_is_measured(root: Path, out: Path) -> None:
    record(root, range(20), trace=5000)
    record(root, range(20), stream_id=11, shift_ns=1000, trace=5000)
    settings = define(root, out)
    Stages(settings).take_all()
    depth = {row["stream_id"]: row["lineage_depth_max"] for row in table(settings, "gold/quality")}
    assert depth == {10: 1, 11: 2}


def test_files_have_the_target_size_and_are_partitioned(root: Path, out: Path) -> None:
    record(root, range(40), shape=(64, 256))
    settings = define(root, out, payload="inline", target_file="128KiB")
    Stages(settings).take_all()
    files = sorted((out / "bronze/frames").rglob("*.parquet"))
    assert len(files) > 4
    assert {file.parent for file in files} == {out / "bronze/frames/date=2023-11-14"}
    assert {oct(file.stat().st_mode & 0o777) for file in files} == {"0o600"}
    assert len(table(settings, "bronze/frames")) == 40


def test_root_keeps_its_fixed_settings(root: Path, out: Path) -> None:
    record(root, range(5))
    Stages(define(root, out)).take_all()
    with pytest.raises(PipelineError, match="created with payload = ref"):
        Stages(define(root, out, payload="inline"))
    # What only looks at rows may change from one run to the next.
    Stages(define(root, out, quality={"interval": "1s"}))
    marker = out / "pipeline.json"
    found = json.loads(marker.read_text())
    found["versions"]["silver"] = 99
    marker.write_text(json.dumps(found))
    with pytest.raises(PipelineError, match="version 99"):
        status(out)


def test_directory_without_a_pipeline_is_an_error(root: Path, out: Path) -> None:
    record(root, range(5))
    out.mkdir()
    (out / "thesis.tex").touch()
    with pytest.raises(PipelineError, match="files of other programs"):
        Stages(define(root, out))


def test_stop_during_the_start_of_spark_runs_no_batch(root: Path, out: Path) -> None:
    from tensorpool.pipeline import run

    class Unused:
        """A Spark session that must not be used."""

    record(root, range(5))
    found = run(define(root, out), spark=Unused(), stop=lambda: True)  # type: ignore[arg-type]
    assert not found.is_running
    assert all(one.batch < 0 for one in found.stages.values())
