"""Progress and status of `tensorpool pipeline`."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace

import pytest
from rich.console import Console

from tensorpool.cli import pipeline
from tensorpool.cli.pipeline import PipelineProgress, print_status, progress_line, stages_table
from tensorpool.pipeline.decisions import StageFigures, StageTotals
from tensorpool.pipeline.status import Status

SECOND = 1_000_000_000


def state(batch: int = 3) -> Status:
    stereo = {"stereo": {"aligned": 480, "late": 20}}
    stages = {
        "bronze": StageFigures(batch, 1200, 50_000_000, 0.5, 1, StageTotals(frames=9000, bytes=2048)),
        "silver": StageFigures(batch, 1190, 50_000_000, 1.0, 1, StageTotals(rejects={"shape": 10})),
        "align": StageFigures(batch, 500, 0, 0.1, 1, StageTotals(alignments=stereo)),
        "gold": StageFigures(),
    }
    last = {10: 200 * SECOND, 11: 100 * SECOND, 12: 199 * SECOND}
    return Status("/data/tables", "ab12", {"bronze": 1}, stages, last, {"stereo": 7}, True)


def rendered(*renderables: object) -> str:
    console = Console(file=io.StringIO(), width=200, force_terminal=False)
    for renderable in renderables:
        console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_progress_line_has_rows_rates_and_backlog() -> None:
    text = progress_line(state(), {10: 30, 11: 12})
    assert "bronze batch 3: 1,200 rows 95.4 MiB/s" in text
    assert "silver batch 3: 1,190 rows 47.7 MiB/s" in text
    assert text.endswith("behind 42 frames")
    assert "gold" not in text


def test_stages_table_counts_by_reason() -> None:
    rows = {row.split()[0]: row for row in rendered(stages_table(state())).splitlines() if row.strip()}
    assert "95" in rows["bronze"].split()
    assert "9,000 frames" in rows["bronze"]
    assert "rejects: shape 10" in rows["silver"]
    assert "stereo: aligned 480, late 20" in rows["align"]
    assert "nothing yet" in rows["gold"]


def test_status_names_quiet_streams_and_pending_frames() -> None:
    console = Console(file=io.StringIO(), width=200, force_terminal=False)
    print_status(console, state())
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    (quiet,) = [row for row in text.splitlines() if "gone quiet" in row]
    assert "11 since 1970-01-01 00:01:40 UTC" in quiet
    assert "12" not in quiet.split("quiet")[1].split("since")[0]
    assert "7 frames" in text
    assert "running" in text


def test_progress_without_a_terminal_is_a_line_per_period(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr(pipeline, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with PipelineProgress(quiet=False) as progress:
        for batch in range(3):
            progress.show(state(batch), {})
        now[0] += 11
        progress.show(state(2), {10: 5})
        progress.show(state(2), {10: 5})
    lines = capsys.readouterr().err.replace("\n  ", " ")
    assert lines.count("bronze batch 0") == 1
    assert lines.count("bronze batch 2") == 1
    assert "bronze batch 1" not in lines
    with PipelineProgress(quiet=True) as progress:
        progress.message("starting Spark")
        progress.show(state(), {})
    assert capsys.readouterr().err == ""


def test_progress_on_a_terminal_is_a_live_table(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Console(file=io.StringIO(), width=120, force_terminal=True)
    monkeypatch.setattr(pipeline, "console", lambda **_: terminal)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with PipelineProgress(quiet=False) as progress:
        progress.show(state(0), {})
        progress.show(state(1), {10: 1234})
    assert isinstance(terminal.file, io.StringIO)
    text = terminal.file.getvalue()
    assert "behind the recordings: 1,234 frames" in text
    assert "\x1b[" in text, "the table is drawn in place"
