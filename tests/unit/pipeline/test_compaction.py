"""Small files become few, and every row is there once all the time: for stages, for readers, after a kill."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from tensorpool.cli.pipeline import pipeline as command
from tensorpool.errors import LockHeld, PipelineError
from tensorpool.pipeline import compact, compact_plan, compaction
from tensorpool.pipeline.layout import Layout
from tensorpool.pipeline.run import _held
from tensorpool.pipeline.schemas import VERSION_KEY
from tests.unit.pipeline.harness import Killed, Stages, cut, define, dies_at, keys, record, table

PIECES = 10
"""Five micro-batches a day."""
DAY_NS = 86_400_000_000_000
ALIGNMENT = [{"name": "stereo", "streams": [10, 11], "tolerance": "1ms", "wait": "100ms"}]
QUALITY = {"interval": "100ms", "lateness": "50ms"}


@pytest.fixture(autouse=True)
def _few_and_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four files become one, and nobody is waited for."""
    monkeypatch.setattr(compaction, "_LISTING_S", 0.0)
    monkeypatch.setattr(compaction, "FAN", 4)
    monkeypatch.setattr(compact_plan, "FAN", 4)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two days of two streams; of the second not every frame."""
    place = tmp_path_factory.mktemp("compaction") / "recording"
    for day in range(2):
        seqs = range(day * 60, day * 60 + 60)
        record(place, seqs, shift_ns=day * DAY_NS)
        record(place, [seq for seq in seqs if seq % 10], stream_id=11, shift_ns=day * DAY_NS + 1000)
    return place


@pytest.fixture(scope="module")
def small(root: Path) -> Any:
    """A pipeline whose files nobody merged. Not to be changed."""
    settings = plain(root, root.parent / "never", compact="never")
    go(settings)
    return settings


@pytest.fixture
def copied(root: Path, small: Any, tmp_path: Path) -> Any:
    """The same, to work on."""
    shutil.copytree(small.out, tmp_path / "tables")
    return plain(root, tmp_path / "tables", compact="never")


def go(settings: Any, *, pieces: int = PIECES) -> Stages:
    stages = Stages(settings)
    stages.take_all(pieces=pieces)
    stages.close()
    return stages


def contents(settings: Any) -> dict[str, list[str]]:
    return {
        name: sorted(json.dumps(row, default=str) for row in table(settings, name))
        for name in Layout(settings.out).tables()
    }


def counts(settings: Any, name: str) -> dict[str, int]:
    """Files of a table, by day."""
    found: dict[str, int] = {}
    for path in (settings.out / name).rglob("*.parquet"):
        found[path.parent.name] = found.get(path.parent.name, 0) + 1
    return found


def plain(root: Path, out: Path, **more: Any) -> Any:
    return define(root, out, alignments=ALIGNMENT, quality=QUALITY, **more)


def test_files_of_a_day_are_merged_when_it_is_over(
    root: Path, tmp_path: Path, small: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However few they are.
    monkeypatch.setattr(compact_plan, "FAN", 16)
    settings = plain(root, tmp_path / "tables")
    assert settings.compact == "days"
    go(settings)
    assert contents(settings) == contents(small)
    for name in ("bronze/frames", "silver/frames", "gold/statistics"):
        # Of each of the two streams.
        assert counts(small, name) == {"date=2023-11-14": 10, "date=2023-11-15": 10}, name
        assert counts(settings, name) == {"date=2023-11-14": 2, "date=2023-11-15": 10}, name
    for name in ("silver/gaps", "silver/aligned/stereo", "gold/quality"):
        assert counts(settings, name)["date=2023-11-14"] <= 2 < counts(small, name)["date=2023-11-14"], name
    assert not list((settings.out / "_staging").iterdir())


def test_files_are_merged_as_they_come_where_that_is_asked_for(
    root: Path, tmp_path: Path, small: Any
) -> None:
    settings = plain(root, tmp_path / "tables", compact="always")
    go(settings)
    assert contents(settings) == contents(small)
    # Of five files four became one, of each of two streams.
    assert counts(settings, "silver/frames")["date=2023-11-15"] == 2 * 2


def test_late_frames_of_a_day_that_is_over_are_merged_as_they_come(
    tmp_path: Path,
) -> None:
    root, other = tmp_path / "recording", tmp_path / "other"
    record(root, range(100, 120), shift_ns=DAY_NS)
    record(other, range(80))
    settings = define(root, tmp_path / "tables", recordings=[str(root), str(other)])
    go(settings, pieces=20)
    assert keys(table(settings, "silver/frames")) == [(10, 1, seq) for seq in (*range(80), *range(100, 120))]
    found = counts(settings, "silver/frames")
    assert found["date=2023-11-14"] < 8
    assert found["date=2023-11-15"] == 20


@pytest.mark.parametrize("payload", ["ref", "inline"])
def test_the_command_merges_whatever_is_small(root: Path, tmp_path: Path, payload: str) -> None:
    settings = plain(root, tmp_path / "tables", compact="never", payload=payload, target_file="64KiB")
    go(settings)
    before = contents(settings)
    where = settings.out / "bronze/frames/stream_id=10/date=2023-11-14"
    where.chmod(0o750)
    order = [row["seq"] for row in table(settings, "bronze/frames") if row["stream_id"] == 10]
    done = CliRunner().invoke(command, ["compact", str(settings.out), "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["bronze/frames"] == {"before": 20, "after": 4}
    assert contents(settings) == before
    assert [row["seq"] for row in table(settings, "bronze/frames") if row["stream_id"] == 10] == order
    assert stat.S_IMODE(where.stat().st_mode) == 0o750, "who may look there still may"
    (file,) = where.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with pq.ParquetFile(file) as opened:
        assert opened.schema_arrow.metadata[VERSION_KEY] == b"1"
    assert compact(settings.out) == {}, "nothing is left to do"
    done = CliRunner().invoke(command, ["compact", str(settings.out)])
    assert (done.exit_code, done.stdout) == (0, "")
    assert "no small files" in done.stderr


def test_files_that_are_large_enough_stay_as_they_are(tmp_path: Path) -> None:
    root = tmp_path / "recording"
    record(root, range(40), shape=(64, 256))
    settings = define(root, tmp_path / "tables", payload="inline", target_file="64KiB", compact="never")
    go(settings, pieces=2)
    place = settings.out / "bronze/frames"
    before = {path.name: path.stat().st_ino for path in place.rglob("*.parquet")}
    assert len(before) == 20
    compact(settings.out)
    assert {path.name: path.stat().st_ino for path in place.rglob("*.parquet")} == before


def test_rows_of_open_intervals_are_replaced_after_it_as_before(
    root: Path, tmp_path: Path, small: Any
) -> None:
    settings = plain(root, tmp_path / "tables", compact="never")
    stages = Stages(settings)
    for number, rows in enumerate(cut(settings, PIECES)):
        stages.take(rows, number)
        if number % 3 == 2:
            stages.engine.compact(stages.tasks)
    stages.close()
    assert contents(settings) == contents(small)


@pytest.mark.parametrize("stage", ["_silver", "_align", "_gold"])
def test_what_a_later_stage_has_not_taken_stays_where_it_is(
    root: Path, tmp_path: Path, small: Any, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    settings = plain(root, tmp_path / "tables", compact="never")
    stages = Stages(settings)
    batches = list(cut(settings, PIECES))
    for number, rows in enumerate(batches[:3]):
        stages.take(rows, number)

    def dies(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(stages.engine, stage, dies)
        with pytest.raises(Killed):
            stages.take(batches[3], 3)
    # Three files of each stream.
    assert compact(settings.out)["bronze/frames"].before == 6
    stages = Stages(settings)
    for number, rows in enumerate(batches[3:], 3):
        stages.take(rows, number)
    stages.close()
    assert contents(settings) == contents(small)


def test_a_batch_that_comes_again_after_its_files_were_merged_is_left_at_that(copied: Any) -> None:
    compact(copied.out)
    before = contents(copied)
    # An alignment that was not there before holds for what comes next.
    more = [*ALIGNMENT, {"name": "again", "streams": [11, 10]}]
    settings = define(copied.recordings[0], copied.out, alignments=more, quality=QUALITY, compact="never")
    Stages(settings).take(list(cut(settings, PIECES))[-1], PIECES - 1)
    assert contents(settings) == before


def test_a_kill_at_any_step_of_it_changes_nothing(copied: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = copied
    wanted = contents(settings)
    steps = [(os, "link"), (os, "rename"), (compaction, "swap_directories"), (compaction, "sync_directory")]
    kills = 0
    for step in range(0, 1000, 5):
        dies = dies_at(step)
        with monkeypatch.context() as patch:
            for where, name in steps:
                patch.setattr(where, name, dies(getattr(where, name)))
            try:
                compact(settings.out)
            except Killed:
                kills += 1
            else:
                break
        assert contents(settings) == wanted, f"killed at step {step}"
    assert kills > 5
    assert len(table(settings, "silver/frames")) == 120 + 108
    Stages(settings)
    assert not (settings.out / "_staging").exists()


def test_a_listing_has_every_row_once_while_files_are_merged(root: Path, tmp_path: Path) -> None:
    few = {"quality": {"enabled": False}, "statistics": {"enabled": False}}
    settings = define(root, tmp_path / "tables", compact="always", **few)
    stages = Stages(settings)
    done, faults, looks = threading.Event(), [], 0

    def look() -> Iterator[list[tuple[int, int, int]]]:
        # As any reader does: names first, rows later.
        place = settings.out / "bronze/frames/stream_id=10/date=2023-11-14"
        while not done.is_set():
            try:
                found = [
                    (10, 1, seq)
                    for name in sorted(os.listdir(place))
                    for seq in pq.ParquetFile(place / name)
                    .read(["seq"], use_threads=False)["seq"]
                    .to_pylist()
                ]
            except FileNotFoundError:
                continue
            yield found

    def watch() -> None:
        nonlocal looks
        before = 0
        for found in look():
            looks += 1
            if found != [(10, 1, seq) for seq in range(len(found))] or len(found) < before:
                faults.append(found)
            before = len(found)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        stages.take_all(pieces=40)
    finally:
        done.set()
        watcher.join()
    assert not faults
    assert looks > 3


def test_files_of_other_columns_or_versions_stay_apart(copied: Any) -> None:
    settings = copied
    place = settings.out / "silver/gaps/stream_id=11/date=2023-11-14"
    first, *others = sorted(place.iterdir())
    assert len(others) > 2
    rows = pq.ParquetFile(first).read()
    older = rows.drop_columns(["time"]).replace_schema_metadata({VERSION_KEY: b"0"})
    pq.write_table(older, first)
    before = contents(settings)
    compact(settings.out)
    assert contents(settings) == before
    versions = []
    for path in sorted(place.iterdir()):
        with pq.ParquetFile(path) as file:
            versions.append((file.schema_arrow.metadata[VERSION_KEY], "time" in file.schema_arrow.names))
    assert versions == [(b"0", False), (b"1", True)]


def test_foreign_files_in_a_partition_are_left_alone(copied: Any) -> None:
    settings = copied
    first, second = (settings.out / f"bronze/frames/stream_id={one}/date=2023-11-14" for one in (10, 11))
    (first / "notes").mkdir()
    (second / "_notes.txt").write_text("mine")
    compact(settings.out)
    assert len(list(first.glob("*.parquet"))) == 5
    assert (second / "_notes.txt").read_text() == "mine"
    assert len(list(second.glob("*.parquet"))) == 1


def test_where_directories_cannot_change_places_tables_stay_as_they_are(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: Path) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr("tensorpool.pipeline.exchange.swap_directories", refuses)
    settings = plain(root, tmp_path / "tables", compact="always")
    go(settings)
    assert counts(settings, "silver/frames") == {"date=2023-11-14": 10, "date=2023-11-15": 10}
    with pytest.raises(PipelineError, match="cannot exchange two directories"):
        compact(settings.out)


def test_a_running_pipeline_is_not_disturbed(copied: Any) -> None:
    settings = copied
    with _held(settings.out), pytest.raises(LockHeld, match="another pipeline works"):
        compact(settings.out)
    assert keys(table(settings, "bronze/frames"))
