"""Reruns: rows of gold are computed again, once each, also beside a pipeline that runs and beside merges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tensorpool.cli import cli
from tensorpool.errors import PipelineError
from tensorpool.pipeline import RerunRange, compact
from tensorpool.pipeline.delta import DeltaTables
from tensorpool.pipeline.rerun import Rerun
from tensorpool.pipeline.tasks import LocalTasks
from tests.unit.pipeline.harness import PERIOD_NS, T0, Stages, define, keys, record, table

FUNCTION = {"name": "f", "function": "a:b", "columns": "value double"}


def mean(array: Any) -> float:
    return float(array.mean())


def negative(array: Any) -> float:
    return -float(array.mean())


def values(settings: Any) -> dict[int, float]:
    rows = table(settings, "gold/f")
    found = {row["seq"]: row["value"] for row in rows}
    assert len(found) == len(rows), "a frame is there twice"
    return found


def test_rows_of_a_range_are_replaced_and_the_others_stay(root: Path, out: Path) -> None:
    record(root, range(60))
    record(root, range(60), stream_id=11)
    settings = define(root, out, max_rows=40, functions=[{**FUNCTION, "streams": [10]}])
    Stages(settings, f=mean).take_all()
    before = table(settings, "gold/statistics")
    # The range begins and ends in the middle of files.
    span = RerunRange(T0 + 25 * PERIOD_NS, T0 + 47 * PERIOD_NS)
    done = Rerun(settings, span, functions=["f"], callables={"f": negative}).run(LocalTasks())
    assert {name: result.to_json() for name, result in done.items()} == {
        "gold/f": {"removed": 22, "written": 22}
    }
    assert values(settings) == {seq: -seq if 25 <= seq < 47 else seq for seq in range(60)}
    assert sorted(map(repr, table(settings, "gold/statistics"))) == sorted(map(repr, before))
    # Once more is the same, and the statistics of the log say where the rows are.
    Rerun(settings, span, callables={"f": negative}).run(LocalTasks())
    assert values(settings) == {seq: -seq if 25 <= seq < 47 else seq for seq in range(60)}
    assert keys(table(settings, "gold/statistics")) == keys(before)


def test_new_function_is_filled_for_all_frames_while_the_pipeline_runs(root: Path, out: Path) -> None:
    record(root, range(40))
    old = define(root, out, max_rows=10, compact="never")
    Stages(old).take_all()
    record(root, range(40, 80))
    settings = define(root, out, max_rows=10, compact="never", functions=[FUNCTION])
    live = Stages(settings, f=mean)
    live.take()

    class Beside(LocalTasks):
        """Micro-batches are decided, and files are merged, while the rerun computes."""

        def run(self, work: Any, items: Any) -> Any:
            results = super().run(work, items)
            if merges:
                merges.pop()
                live.take()
                compact(out)
            return results

    merges = [1]
    done = Rerun(settings, RerunRange(), functions=["f"], callables={"f": mean}).run(Beside())
    assert not merges
    assert done["gold/f"].written >= 50
    live.take_all()
    assert values(settings) == {seq: seq for seq in range(80)}
    Rerun(settings, RerunRange(), callables={"f": negative}).run(LocalTasks())
    assert values(settings) == {seq: -seq for seq in range(80)}
    assert keys(table(settings, "gold/statistics")) == [(10, 1, seq) for seq in range(80)]


def test_merge_at_the_moment_of_the_transaction_begins_the_rerun_again(
    root: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(root, range(40))
    settings = define(root, out, max_rows=10, compact="never", functions=[FUNCTION])
    Stages(settings, f=mean).take_all()
    files, merges = DeltaTables.files, [1]

    def merging(self: DeltaTables, name: str) -> Any:
        found = files(self, name)
        # The last look at the table before its transaction.
        if name == "gold/f" and len(looks) == 1 and merges:
            merges.pop()
            compact(out)
        looks.extend([1] if name == "gold/f" else [])
        return found

    looks: list[int] = []
    monkeypatch.setattr(DeltaTables, "files", merging)
    Rerun(settings, RerunRange(), functions=["f"], callables={"f": negative}).run(LocalTasks())
    assert not merges
    assert values(settings) == {seq: -seq for seq in range(40)}


def test_wrong_rerun_is_refused_with_what_to_type(root: Path, out: Path, tmp_path: Path) -> None:
    record(root, range(5))
    settings = define(root, out, functions=[FUNCTION])
    with pytest.raises(PipelineError, match=r"g is not a function.*use f, statistics"):
        Rerun(settings, RerunRange(), functions=["g"])
    with pytest.raises(PipelineError, match="--to has to be later than --from"):
        Rerun(settings, RerunRange(5, 5))
    definition = tmp_path / "pipeline.toml"
    definition.write_text(f'[pipeline]\nrecordings = ["{root}"]\nout = "{out}"\n')
    done = CliRunner().invoke(cli, ["pipeline", "rerun", str(definition), "--stage", "silver"])
    assert done.exit_code == 2
    assert "gold" in done.output
