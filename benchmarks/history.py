"""The history of the benchmarks: one JSON a release in `results/`, and the page that shows them.

`python -m benchmarks --save` writes the file of the version that was measured. `python -m tools.reference`
writes the page. Figures of different machines cannot be compared, so the page shows ratios within one run.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from .dataplane import OURS, SIZES
from .report import Report
from .targets import PEER

RESULTS = Path(__file__).parent / "results"
_HEAD = """# Benchmarks by release

What each release reached, as ratios within one run. `python -m benchmarks --peers --save` on an idle machine
writes `benchmarks/results/<version>.json`, and `python -m tools.reference` makes this page of these files.
[Benchmarks](benchmarks.md) says what is measured, and how.
"""
_NONE = "No release was saved yet.\n"
_LATENCIES = {"p50_us": "p50", "p99_us": "p99", "p999_us": "p99.9"}


@dataclass(frozen=True, slots=True)
class SavedTarget:
    """A target and what a release reached."""

    what: str
    goal: str
    ratio: float
    verdict: str


@dataclass(frozen=True, slots=True)
class SavedPair:
    """Medians of a library and a frame size, with two processes."""

    library: str
    size: str
    medians: dict[str, float]


@dataclass(frozen=True, slots=True)
class SavedRun:
    """The results of one release."""

    version: str
    date: str
    machine: dict[str, str]
    versions: dict[str, str]
    runs: int
    others_cores: float
    """Largest load by other processes during a measurement."""
    targets: tuple[SavedTarget, ...]
    pairs: tuple[SavedPair, ...]

    @classmethod
    def from_report(cls, report: Report, date: str) -> Self:
        """The results of a report. What was not measured is left out."""
        return cls(
            version=report.versions[OURS],
            date=date,
            machine=report.machine,
            versions=report.versions,
            runs=report.settings.runs,
            others_cores=round(report.others() or 0.0, 3),
            targets=tuple(
                SavedTarget(target.what, target.goal, round(target.ratio, 3), target.verdict)
                for target in report.targets()
                if target.ratio is not None
            ),
            pairs=tuple(
                SavedPair(library, size, _medians(report, library, size))
                for library, size in report.measured.pairs
            ),
        )

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Decodes a file that `to_json` encoded."""
        fields: dict[str, Any] = json.loads(text)
        fields["targets"] = tuple(SavedTarget(**target) for target in fields["targets"])
        fields["pairs"] = tuple(SavedPair(**pair) for pair in fields["pairs"])
        return cls(**fields)

    def to_json(self) -> str:
        """Encodes the results."""
        return json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n"

    def with_results_of(self, earlier: SavedRun) -> SavedRun:
        """These results, and those of an earlier run of the same version that were not measured again."""
        targets = {(target.what, target.goal): target for target in (*earlier.targets, *self.targets)}
        pairs = {(pair.library, pair.size): pair for pair in (*earlier.pairs, *self.pairs)}
        return SavedRun(
            version=self.version,
            date=self.date,
            machine=self.machine,
            versions=earlier.versions | self.versions,
            runs=self.runs,
            others_cores=max(earlier.others_cores, self.others_cores),
            targets=tuple(targets.values()),
            pairs=tuple(pairs.values()),
        )

    def ratio(self, size: str, key: str) -> float | None:
        """A value of ours divided by that of the peer; None if one of them was not measured."""
        medians = {pair.library: pair.medians for pair in self.pairs if pair.size == size}
        ours, peer = (medians.get(library, {}).get(key) for library in (OURS, PEER))
        return ours / peer if ours and peer else None


def _medians(report: Report, library: str, size: str) -> dict[str, float]:
    keys = (*_LATENCIES, "delivered_hz", "loss")
    values = {key: report.measured.pair(library, size, key) for key in keys}
    return {key: round(value, 3) for key, value in values.items() if value is not None}


def save(report: Report, directory: Path = RESULTS) -> Path:
    """Writes the results of a release; those of an earlier run stay unless they were measured again.

    Refuses a run that was disturbed, and one that failed.
    """
    if report.disturbed or report.failures:
        reason = "measurements failed" if report.failures else "other processes disturbed the run"
        raise SystemExit(f"nothing was saved: {reason}; try --patience 600")
    saved = SavedRun.from_report(report, datetime.now(UTC).date().isoformat())
    path = directory / f"{saved.version}.json"
    if path.exists():
        earlier = SavedRun.from_json(path.read_text("utf-8"))
        if earlier.machine == saved.machine:
            saved = saved.with_results_of(earlier)
    directory.mkdir(exist_ok=True)
    path.write_text(saved.to_json(), "utf-8")
    return path


def load(directory: Path = RESULTS) -> list[SavedRun]:
    """The results of all releases, oldest first."""
    runs = [SavedRun.from_json(path.read_text("utf-8")) for path in directory.glob("[0-9]*.json")]
    return sorted(runs, key=lambda run: [int(part) for part in run.version.split(".") if part.isdecimal()])


def render(directory: Path = RESULTS) -> str:
    """The page."""
    runs = load(directory)
    if not runs:
        return f"{_HEAD}\n{_NONE}"
    versions = [run.version for run in runs]
    blocks = [
        _HEAD,
        "## Targets\n\n" + _table(["target", "to reach", *versions], _target_rows(runs)),
        f"## Two processes, ours ÷ {PEER}\n\n" + _table(["size", "value", *versions], _pair_rows(runs)),
        "## Machines\n\n"
        + _table(
            ["version", "date", "machine", "runs", "others used, cores"],
            [
                [
                    run.version,
                    run.date,
                    ", ".join(f"{key} {value}" for key, value in run.machine.items()),
                    str(run.runs),
                    f"{run.others_cores:.2f}",
                ]
                for run in runs
            ],
        ),
    ]
    return "\n".join(blocks)


def _target_rows(runs: list[SavedRun]) -> list[list[str]]:
    names = dict.fromkeys((target.what, target.goal) for run in runs for target in run.targets)
    rows = []
    for name in names:
        reached = [{(t.what, t.goal): t for t in run.targets}.get(name) for run in runs]
        rows.append([*name, *("-" if t is None else f"{t.ratio:.2f} {t.verdict}" for t in reached)])
    return rows


def _pair_rows(runs: list[SavedRun]) -> list[list[str]]:
    rows = []
    for size in SIZES:
        for key, name in (*_LATENCIES.items(), ("delivered_hz", "delivered")):
            ratios = [run.ratio(size, key) for run in runs]
            if any(ratio is not None for ratio in ratios):
                rows.append([size, name, *("-" if ratio is None else f"{ratio:.2f}" for ratio in ratios)])
    return rows


def _table(head: list[str], rows: list[list[str]]) -> str:
    rule = ["---" for _ in head]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *rows)) + "\n"
