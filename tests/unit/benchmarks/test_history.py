"""Results of releases: saved, merged, and shown on a page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import history
from benchmarks.dataplane import OURS, DataPlaneRuns, Settings
from benchmarks.history import SavedRun
from benchmarks.report import Report
from benchmarks.targets import PEER


def report(
    version: str = "1.2.0", *, p50_us: float = 5.0, others: float = 0.01, rate: float = 300.0
) -> Report:
    """A report of two libraries with frames of 64 B."""
    measured = DataPlaneRuns()
    for library, latency, delivered in ((OURS, p50_us, rate), (PEER, 10.0, 100.0)):
        measured.pairs[library, "64 B"] = [
            {"p50_us": latency, "delivered_hz": delivered, "others_cores": others}
        ]
    return Report(
        machine={"cpu": "test", "cores": "2"},
        versions={OURS: version, PEER: "0.10.0"},
        terms={},
        settings=Settings(libraries=[OURS, PEER], sizes=["64 B"]),
        measured=measured,
        codecs=None,
        sections=[],
    )


def test_saved_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = history.save(report(), tmp_path)
    assert path.name == "1.2.0.json"
    (saved,) = history.load(tmp_path)
    assert saved == SavedRun.from_json(path.read_text("utf-8"))
    assert saved.ratio("64 B", "p50_us") == pytest.approx(0.5)
    assert saved.ratio("64 KiB", "p50_us") is None
    (rate,) = (target for target in saved.targets if target.what == "delivered rate, 64 B")
    assert (rate.ratio, rate.verdict) == (3.0, "reached")


def test_second_run_of_a_version_replaces_what_it_measured(tmp_path: Path) -> None:
    history.save(report(), tmp_path)
    (before,) = history.load(tmp_path)
    other = replace(before, targets=(replace(before.targets[0], what="another part"),), pairs=())
    (tmp_path / "1.2.0.json").write_text(other.to_json(), "utf-8")
    history.save(report(p50_us=20.0), tmp_path)
    (after,) = history.load(tmp_path)
    assert after.ratio("64 B", "p50_us") == pytest.approx(2.0)
    assert "another part" in {target.what for target in after.targets}


def test_page_shows_releases_in_order_with_their_ratios(tmp_path: Path) -> None:
    for version, rate in (("0.10.0", 300.0), ("0.9.0", 200.0)):
        history.save(report(version, rate=rate), tmp_path)
    page = history.render(tmp_path)
    assert "| target | to reach | 0.9.0 | 0.10.0 |" in page
    assert "| delivered rate, 64 B | ≥ 2.5 x iceoryx2 | 2.00 missed | 3.00 reached |" in page
    assert "| 64 B | delivered | 2.00 | 3.00 |" in page
    assert "cpu test, cores 2" in page


def test_page_without_results_has_no_table(tmp_path: Path) -> None:
    assert "No release was saved yet." in history.render(tmp_path)


def test_disturbed_and_failed_runs_are_not_saved(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="disturbed"):
        history.save(report(others=0.5), tmp_path)
    failed = report()
    failed.measured.failures.append("tensorpool 64 B: it ended early")
    with pytest.raises(SystemExit, match="failed"):
        history.save(failed, tmp_path)
    assert list(tmp_path.glob("*.json")) == []
