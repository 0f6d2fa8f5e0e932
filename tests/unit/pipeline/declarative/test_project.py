"""Projects for Declarative Pipelines: their files, and the transformations that need no Spark."""

from __future__ import annotations

import ast
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorpool.errors import ConfigError
from tensorpool.pipeline import declarative, definition, schemas
from tensorpool.pipeline.declarative.adapters import explained, groups

pytest.importorskip("pyspark")

SECOND = 1_000_000_000


def settings(**more: Any) -> definition.PipelineSettings:
    return definition.parse({"pipeline": {"recordings": ["/data/day"], "out": "/data/tables", **more}})


def test_project_definition_equals_the_settings(tmp_path: Path) -> None:
    asked = settings(
        streams=[10_000, 10_001], payload="inline", rules=[{"dtype": ["uint16"], "shape": [480, 0]}],
        alignments=[{"name": "left-right", "streams": [10_000, 10_001], "tolerance": "3ms"}],
        functions=[{"name": "looks", "function": "looks:mean", "columns": "mean double"}],
        quality={"interval": "1s"}, statistics={"enabled": False},
    )  # fmt: skip
    declarative.write_project(tmp_path / "project", asked)
    found = definition.load(tmp_path / "project/pipeline.toml", environ={})
    assert replace(found, out=asked.out) == asked
    assert found.out == str(tmp_path / "project/tables")


def test_project_without_settings_has_a_valid_definition(tmp_path: Path) -> None:
    project = tmp_path / "project"
    declarative.write_project(project)
    assert definition.load(project / "pipeline.toml", environ={}).recordings == (str(project / "recording"),)


def test_project_lists_its_files_and_transformations(tmp_path: Path) -> None:
    project = tmp_path / "project"
    made = declarative.write_project(project, settings())
    found = sorted(path for path in project.rglob("*") if path.is_file())
    assert found == sorted(made)
    tables = set()
    for path in (project / "transformations").iterdir():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.decorator_list:
                tables.add(node.name)
    assert {"bronze_frames", "bronze_gaps", "silver_frames", "silver_rejects", "gold_quality"} <= tables


def test_project_does_not_replace_files(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "mine.txt").write_text("words", "utf-8")
    with pytest.raises(ConfigError, match="not empty"):
        declarative.write_project(project, settings())
    assert [one.name for one in project.iterdir()] == ["mine.txt"]


def test_function_that_returns_arrays_is_refused(tmp_path: Path) -> None:
    asked = settings(functions=[{"name": "flat", "function": "looks:flat", "output": "recording"}])
    with pytest.raises(ConfigError, match="tensorpool pipeline run"):
        declarative.write_project(tmp_path / "project", asked)
    assert not (tmp_path / "project").exists()


# --- gaps


def gap(seq: int, count: int, *, recording: str = "a", reason: str = "overwritten") -> dict[str, Any]:
    return {
        "stream_id": 7, "epoch": 1, "seq": seq, "gap_count": count, "gap_reason": reason,
        "recording": recording, "latest_ns": 99 * SECOND,
    }  # fmt: skip


def frame(seq: int, *, is_sound: bool) -> dict[str, Any]:
    return {"stream_id": 7, "epoch": 1, "seq": seq, "receive_time_ns": seq * SECOND, "is_sound": is_sound}


def missing(gaps: list[dict[str, Any]], seqs: list[int], sound: list[int]) -> list[tuple[int, int, int]]:
    known = [frame(seq, is_sound=False) for seq in seqs] + [frame(seq, is_sound=True) for seq in sound]
    empty = pa.table({name: pa.array([], pa.int64()) for name in ("seq", "receive_time_ns")}).append_column(
        "is_sound", pa.array([], pa.bool_())
    )
    frames = pa.Table.from_pylist(known) if known else empty
    found = explained(pa.Table.from_pylist(gaps), frames, schemas.silver_gaps().whole)
    return [(row["first_seq"], row["count"], row["receive_time_ns"] // SECOND) for row in found.to_pylist()]


def test_gap_has_the_time_of_the_frame_after_it() -> None:
    assert missing([gap(3, 2)], [1, 2, 5, 6], [1, 2, 5, 6]) == [(3, 2, 5)]


def test_gap_at_the_end_has_the_time_of_the_frame_before() -> None:
    assert missing([gap(3, 2)], [1, 2], [1, 2]) == [(3, 2, 2)]


def test_gap_filled_by_another_recording_is_not_reported() -> None:
    assert missing([gap(3, 4)], [1, 2, 4, 7], [1, 2, 4, 7]) == [(3, 1, 4), (5, 2, 7)]


def test_gap_of_two_recordings_is_reported_once() -> None:
    assert missing([gap(3, 2), gap(3, 2, recording="b")], [2, 5], [2, 5]) == [(3, 2, 5)]


def test_gap_of_an_epoch_without_frames_has_the_latest_time() -> None:
    assert missing([gap(0, 9)], [], []) == [(0, 9, 99)]


# --- groups


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=40),
    st.lists(st.integers(1, 7), min_size=1, max_size=20),
)
def test_groups_do_not_depend_on_batch_limits(keys: list[tuple[int, int]], sizes: list[int]) -> None:
    keys.sort()
    rows = [{"a": a, "b": b, "n": number} for number, (a, b) in enumerate(keys)]
    whole = pa.Table.from_pylist(rows, schema=pa.schema([(name, pa.int64()) for name in "abn"]))
    batches, at = [], 0
    for size in itertools.cycle(sizes):
        if at >= len(rows):
            break
        batches += whole.slice(at, size).combine_chunks().to_batches()
        at += size
    found = [table.to_pylist() for table in groups(batches, ["a", "b"])]
    expected = [list(own) for _, own in itertools.groupby(rows, key=lambda row: (row["a"], row["b"]))]
    assert found == expected
