"""All stages over small recordings, without Spark: what is in the tables, and what a kill does to it."""

from __future__ import annotations

import itertools
import json
import os
import random
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tensorpool import recording
from tensorpool.durable import replace_file
from tensorpool.errors import LockHeld, PipelineError
from tensorpool.pipeline import commit, status
from tensorpool.pipeline.layout import Layout
from tests.unit.pipeline.harness import Killed, Stages, define, dies_at, frame, keys, record, rows_of, table

ALIGNMENT = [{"name": "stereo", "streams": [10, 11], "tolerance": "1ms", "wait": "100ms"}]


def brightness(array: Any) -> Any:
    return array.mean(), int(array.max())


def test_frames_go_through_all_stages_once(root: Path, out: Path) -> None:
    record(root, range(200))
    record(root, [seq for seq in range(200) if seq % 10 != 3], stream_id=11, shift_ns=1000)
    settings = define(
        root, out, alignments=ALIGNMENT, quality={"interval": "500ms", "lateness": "100ms"},
        functions=[{"name": "looks", "function": "a:b", "columns": "mean double, peak bigint"}],
    )  # fmt: skip
    stages = Stages(settings, looks=brightness)
    stages.take_all(pieces=4)
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
    assert found.stages["silver"].totals == {"frames": 380, "bytes": 380 * 64, "missing": 20, "rejects": {}}
    assert not any(found.pending.values())
    # What is carried is replaced: nothing of earlier micro-batches stays behind.
    assert not list((out / "_state/align").iterdir())
    assert len(list((out / "_state/gold").iterdir())) <= 2


@pytest.mark.parametrize(
    "steps", [pytest.param(7, id="some"), pytest.param(None, id="all", marks=pytest.mark.long)]
)
@pytest.mark.timeout(600)
def test_a_kill_anywhere_in_any_commit_changes_nothing(
    root: Path, out: Path, monkeypatch: pytest.MonkeyPatch, steps: int | None
) -> None:
    record(root, range(60), trace=7000)
    record(root, range(0, 60, 2), stream_id=11, shift_ns=1000)
    more: dict[str, Any] = {
        "alignments": ALIGNMENT, "quality": {"interval": "100ms", "lateness": "50ms"},
        "functions": [{"name": "half", "function": "a:b", "output": "recording"}],
    }  # fmt: skip

    def half(array: Any) -> Any:
        return array[:2]

    def contents(settings: Any) -> dict[str, list[str]]:
        return {
            name: sorted(json.dumps(row, default=str) for row in table(settings, name))
            for name in Layout(settings.out).tables()
        }

    def go(settings: Any) -> None:
        stages = Stages(settings, half=half)
        stages.take_all(pieces=2)
        stages.close()

    whole = define(root, out, **more)
    go(whole)
    wanted = contents(whole)
    assert len(wanted["silver/frames"]) == 90
    write = replace_file
    # Every one of them, or a few that a seed chooses among the first fifty.
    chosen = itertools.count() if steps is None else sorted(random.Random(5).sample(range(50), steps))
    for step in chosen:
        settings = define(root, out.with_name(f"tables-{step}"), **more)
        dies = dies_at(step)
        with monkeypatch.context() as patch:
            patch.setattr(commit, "replace_file", dies(write))
            patch.setattr(commit, "os", SimpleNamespace(rename=dies(os.rename)))
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
        with recording.open(settings.out / "derived" / "half") as opened:
            assert [one.rows for stream in opened.streams for one in opened.ledger(stream)] == [60, 30]
            assert np.array_equal(opened.frame(10, 7).array, frame(7)[:2])


def test_what_two_recorders_have_is_there_once_and_gaps_are_what_neither_has(
    root: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    record(root, [seq for seq in range(100) if not 20 <= seq < 30])
    record(other, [seq for seq in range(100) if not 25 <= seq < 40])
    settings = define(root, tmp_path / "tables", recordings=[str(root), str(other)])
    stages = Stages(settings)
    stages.take_all(pieces=3)
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
def test_a_corrupt_payload_a_changed_shape_and_a_wrong_type_are_turned_away(
    root: Path, out: Path, payload: str
) -> None:
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


def test_a_segment_that_is_gone_is_a_reject_and_not_the_end(root: Path, out: Path) -> None:
    record(root, range(10))
    record(root, range(10, 20))
    settings = define(root, out)
    stages = Stages(settings)

    class Removing:
        """Retention without leases comes between bronze and silver."""

        def run(self, work: Any, items: Any) -> Any:
            (root / "stream=10/epoch=1/00000000000000000000.arrows").unlink(missing_ok=True)
            return [work(item) for item in items]

    stages.tasks = Removing()
    stages.take_all()
    assert keys(table(settings, "silver/frames")) == [(10, 1, seq) for seq in range(10, 20)]
    assert Counter(row["reason"] for row in table(settings, "silver/rejects")) == {"missing": 10}


def test_a_frame_for_a_hole_that_is_forgotten_is_late_and_not_guessed_at(root: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    record(root, range(0, 200, 2))
    record(other, [1, 199])
    settings = define(root, tmp_path / "tables", recordings=[str(root), str(other)], silver={"max_runs": 16})
    stages = Stages(settings)
    for place in (root, other):
        stages.take(list(rows_of(place)))
    rejects = [(row["seq"], row["reason"]) for row in table(settings, "silver/rejects")]
    assert rejects == [(1, "late")]
    assert keys(table(settings, "silver/frames"))[-1] == (10, 1, 199), "of what is remembered it is known"
    quality = table(settings, "gold/quality")
    assert sum(row["rejected"] for row in quality) == 1
    assert sum(row["frames"] for row in quality) == 101


def test_a_staged_file_that_something_else_removed_is_named(
    root: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(root, range(5))
    rename = os.rename

    def removes(staged: Path, final: Path) -> None:
        staged.unlink()
        rename(staged, final)

    monkeypatch.setattr(commit, "os", SimpleNamespace(rename=removes))
    with pytest.raises(PipelineError, match=r"bronze-frames-\w+\.parquet is gone .*begin another root"):
        Stages(define(root, out)).take_all()


def test_vanished_stream_is_in_the_status_and_blocks_no_other(root: Path, out: Path) -> None:
    record(root, range(1000))
    record(root, range(10), stream_id=11, shift_ns=1000)
    settings = define(root, out, alignments=ALIGNMENT)
    stages = Stages(settings)
    stages.take_all(pieces=1)
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


def test_files_end_at_their_size_and_lie_by_stream_and_day(root: Path, out: Path) -> None:
    record(root, range(40), shape=(64, 256))
    settings = define(root, out, payload="inline", target_file="128KiB")
    Stages(settings).take_all()
    files = sorted((out / "bronze/frames").rglob("*.parquet"))
    assert len(files) > 4
    assert {file.parent for file in files} == {out / "bronze/frames/stream_id=10/date=2023-11-14"}
    assert {oct(file.stat().st_mode & 0o777) for file in files} == {"0o600"}
    assert len(table(settings, "bronze/frames")) == 40


def test_a_root_stays_with_what_it_was_begun_with(root: Path, out: Path) -> None:
    record(root, range(5))
    Stages(define(root, out)).take_all()
    with pytest.raises(PipelineError, match="begun with payload = ref"):
        Stages(define(root, out, payload="inline"))
    # What only looks at rows may change from one run to the next.
    Stages(define(root, out, quality={"interval": "1s"}))
    marker = Layout(out).marker
    found = json.loads(marker.read_text())
    found["versions"]["silver"] = 99
    marker.write_text(json.dumps(found))
    with pytest.raises(PipelineError, match="version 99"):
        status(out)


def test_foreign_directory_is_left_alone(root: Path, out: Path) -> None:
    record(root, range(5))
    out.mkdir()
    (out / "thesis.tex").touch()
    with pytest.raises(PipelineError, match="no pipeline's"):
        Stages(define(root, out))


def test_second_pipeline_on_a_root_is_refused_and_names_the_first(root: Path, out: Path) -> None:
    from tensorpool.pipeline.run import _held

    record(root, range(5))
    Stages(define(root, out)).take_all()
    with _held(out), pytest.raises(LockHeld, match=r"another pipeline works on .* process \d+"), _held(out):
        pass
    with _held(out):
        assert status(out).is_running
    assert not status(out).is_running


def test_who_stops_while_spark_starts_waits_for_no_micro_batch(root: Path, out: Path) -> None:
    from tensorpool.pipeline import run

    class Unused:
        """A session of which nothing is wanted."""

    record(root, range(5))
    found = run(define(root, out), spark=Unused(), stop=lambda: True)  # type: ignore[arg-type]
    assert not found.is_running
    assert all(one.batch < 0 for one in found.stages.values())
