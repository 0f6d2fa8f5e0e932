"""What a pipeline shows while it runs: by stage rows, MiB/s, how far behind; and what its account says."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from tensorpool.cli import pipeline
from tensorpool.cli.pipeline import PipelineProgress, line, show_status, stages_table
from tensorpool.pipeline.status import StageStatus, Status

SECOND = 1_000_000_000


def found(batch: int = 3) -> Status:
    stages = {
        "bronze": StageStatus("bronze", batch, 1200, 50_000_000, 0.5, 1, {"frames": 9000, "bytes": 2048}),
        "silver": StageStatus("silver", batch, 1190, 50_000_000, 1.0, 1, {"rejects": {"shape": 10}}),
        "align": StageStatus("align", batch, 500, 0, 0.1, 1, {"stereo": {"aligned": 480, "late": 20}}),
        "gold": StageStatus("gold"),
    }
    last = {10: 200 * SECOND, 11: 100 * SECOND, 12: 199 * SECOND}
    return Status(Path("/data/tables"), "ab12", {"bronze": 1}, stages, last, {"stereo": 7}, True)


def text_of(*things: object) -> str:
    console = Console(file=io.StringIO(), width=200, force_terminal=False)
    for one in things:
        console.print(one)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_line_has_rows_and_rate_of_each_stage_and_how_far_behind() -> None:
    words = line(found(), {10: 30, 11: 12})
    assert "bronze batch 3: 1,200 rows 95.4 MiB/s" in words
    assert "silver batch 3: 1,190 rows 47.7 MiB/s" in words
    assert words.endswith("behind 42 frames")
    assert "gold" not in words


def test_the_table_counts_by_reason() -> None:
    rows = {row.split()[0]: row for row in text_of(stages_table(found())).splitlines() if row.strip()}
    assert "95" in rows["bronze"].split()
    assert "9,000 frames" in rows["bronze"]
    assert "rejects: shape 10" in rows["silver"]
    assert "stereo: aligned 480, late 20" in rows["align"]
    assert "nothing yet" in rows["gold"]


def test_the_account_names_streams_that_have_gone_quiet_and_what_waits() -> None:
    console = Console(file=io.StringIO(), width=200, force_terminal=False)
    show_status(console, found())
    assert isinstance(console.file, io.StringIO)
    words = console.file.getvalue()
    (quiet,) = [row for row in words.splitlines() if "gone quiet" in row]
    assert "11 since 1970-01-01 00:01:40 UTC" in quiet
    assert "12" not in quiet.split("quiet")[1].split("since")[0]
    assert "7 frames" in words
    assert "running" in words


def test_elsewhere_than_on_a_terminal_there_is_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr(pipeline, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with PipelineProgress(quiet=False) as screen:
        for batch in range(3):
            screen.show(found(batch), {})
        now[0] += 11
        screen.show(found(2), {10: 5})
        screen.show(found(2), {10: 5})
    lines = capsys.readouterr().err.replace("\n  ", " ")
    assert lines.count("bronze batch 0") == 1
    assert lines.count("bronze batch 2") == 1
    assert "bronze batch 1" not in lines
    with PipelineProgress(quiet=True) as screen:
        screen.say("starting Spark")
        screen.show(found(), {})
    assert capsys.readouterr().err == ""


def test_on_a_terminal_a_table_stays_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Console(file=io.StringIO(), width=120, force_terminal=True)
    monkeypatch.setattr(pipeline, "console", lambda **_: shown)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with PipelineProgress(quiet=False) as screen:
        screen.show(found(0), {})
        screen.show(found(1), {10: 1234})
    assert isinstance(shown.file, io.StringIO)
    words = shown.file.getvalue()
    assert "behind the recordings: 1,234 frames" in words
    assert "\x1b[" in words, "it is drawn over what was there"
