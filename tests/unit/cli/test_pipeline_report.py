"""`tensorpool pipeline report`, and `init --declarative`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from click.testing import CliRunner

from tensorpool.cli.pipeline import pipeline as command
from tensorpool.cli.pipeline import report
from tests.unit.pipeline.conftest import arrows_threads  # noqa: F401  a fixture
from tests.unit.pipeline.report.sample_tables import pipeline


def test_report_page_is_beside_the_tables_by_default(tmp_path: Path) -> None:
    pipeline(tmp_path / "out", seconds=3)
    done = CliRunner().invoke(report, [str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "out.html").read_text("utf-8").startswith("<!doctype html>")
    assert done.stdout == ""
    done = CliRunner().invoke(report, [str(tmp_path / "out"), "--out", str(tmp_path / "x.html")])
    assert (tmp_path / "x.html").is_file()


def test_report_with_json_alone_writes_no_page(tmp_path: Path) -> None:
    sample = pipeline(tmp_path / "out", seconds=3)
    done = CliRunner().invoke(report, [str(tmp_path / "out"), "--json"])
    assert json.loads(done.stdout)["totals"]["frames"] == sum(sample.frames.values())
    assert not (tmp_path / "out.html").exists()


def test_report_on_inconsistent_tables_fails_and_writes_a_page(tmp_path: Path) -> None:
    pipeline(tmp_path / "out", seconds=3)
    shutil.rmtree(tmp_path / "out/silver/rejects")
    done = CliRunner().invoke(report, [str(tmp_path / "out")])
    assert done.exit_code == 1
    assert "silver checked" in done.stderr
    assert "do not add up" in (tmp_path / "out.html").read_text("utf-8")


def test_report_open_needs_a_page(tmp_path: Path) -> None:
    pipeline(tmp_path / "out", seconds=3)
    assert CliRunner().invoke(report, [str(tmp_path / "out"), "--json", "--open"]).exit_code == 2


def test_report_is_a_command_of_pipeline(tmp_path: Path) -> None:
    pipeline(tmp_path / "out", seconds=3)
    assert CliRunner().invoke(command, ["report", str(tmp_path / "out")]).exit_code == 0


def test_init_writes_a_declarative_project(tmp_path: Path) -> None:
    arguments = [str(tmp_path / "project"), "--recording", str(tmp_path / "day")]
    done = CliRunner().invoke(command, ["init", "--declarative", *arguments])
    assert done.exit_code == 0, done.output
    assert "spark-pipelines run" in done.stderr
    assert str(tmp_path / "day") in (tmp_path / "project/pipeline.toml").read_text("utf-8")
    assert (tmp_path / "project/transformations/gold.py").is_file()
