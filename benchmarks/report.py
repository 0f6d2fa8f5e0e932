"""The report of a benchmark run: tables on the terminal, JSON, Markdown for the page of benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from .dataplane import NSLOTS, OURS, QUIET_CORES, SIZES, DataPlaneRuns, Settings
from .section import Rows, Section, Table
from .targets import Target, targets

BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
_VERDICT_COLOURS = {"reached": "green", "missed": "red", "not measured": "dim"}


@dataclass(frozen=True, slots=True)
class Report:
    """All results of one benchmark run."""

    machine: dict[str, str]
    versions: dict[str, str]
    terms: dict[str, str]
    settings: Settings
    measured: DataPlaneRuns
    codecs: dict[str, Any] | None
    sections: list[Section]

    def to_json(self) -> dict[str, Any]:
        """The report as JSON."""
        measured = self.measured
        return {
            "machine": self.machine,
            "versions": self.versions,
            "terms": self.terms,
            "settings": asdict(self.settings) | {"nslots": NSLOTS, "size_bytes": SIZES},
            "two_processes": [
                {"library": library, "size": size, "runs": runs, "median": _medians(measured, library, size)}
                for (library, size), runs in measured.pairs.items()
            ],
            "one_process": [
                {"size": size, "runs": runs, "median": {k: measured.single(size, k) for k in runs[0]}}
                for size, runs in measured.one_process.items()
                if runs
            ],
            **{section.key: section.data for section in self.sections},
            "targets": [_target_json(target) for target in self.targets()],
            "codecs": self.codecs,
            "failures": self.failures,
        }

    @property
    def failures(self) -> list[str]:
        """Error texts of the measurements that failed."""
        return [
            *self.measured.failures,
            *(failure for section in self.sections for failure in section.failures),
        ]

    def targets(self) -> list[Target]:
        """Targets of the data plane and of all sections."""
        data_plane = targets(self.measured) if self.measured.pairs else []
        return data_plane + [target for section in self.sections for target in section.targets]

    def others(self) -> float | None:
        """Largest load by other processes during any measurement, in cores."""
        known = (self.measured.others(), *(section.others for section in self.sections))
        return max((others for others in known if others is not None), default=None)

    @property
    def disturbed(self) -> bool:
        """Whether other processes used so much of the machine that neither figures nor ratios are
        reliable."""
        return (self.others() or 0.0) >= QUIET_CORES

    def conditions(self) -> list[str]:
        """Sentences that say how the figures were measured."""
        measured, others = self.measured, self.others()
        notes: list[str] = []
        if measured.pairs or measured.one_process:
            notes.append(
                f"Medians of {self.settings.runs} runs; a ring of 256 slots for 64 B and of 8 for the "
                "others, and as many buffered messages where a library has that setting; two processes that "
                "spin; a frame is filled by one copy of its size, and its first and last 8 bytes are read; "
                "latency from before the fill, at 1 kHz."
            )
        notes += [note for section in self.sections for note in section.notes]
        if others is not None:
            notes.append(f"Other processes used at most {others:.2f} cores during the measurements.")
        return notes


def _medians(measured: DataPlaneRuns, library: str, size: str) -> dict[str, float | None]:
    runs = measured.pairs[library, size]
    return {key: measured.pair(library, size, key) for key in (runs[0] if runs else {})}


def _target_json(target: Target) -> dict[str, Any]:
    return asdict(target) | {"goal": target.goal, "verdict": target.verdict}


# --- rows, the same for the terminal and for Markdown

_PAIR_HEAD = ["size", "library", "p50 µs", "p99 µs", "p99.9 µs", "delivered /s", "GiB/s", "lost", "÷ ours"]
_SINGLE_HEAD = ["size", "publish + consume µs", "bare copy µs", "ratio"]
_TARGET_HEAD = ["target", "to reach", "measured", ""]
_CODEC_HEAD = ["message", "bytes", "ours µs", "msgpack (pure) µs", "json µs", "÷ msgpack", "÷ json"]


def pair_rows(measured: DataPlaneRuns) -> Rows:
    """Rows of the table with a producer and a consumer in two processes."""
    rows = []
    for (library, size), _ in sorted(measured.pairs.items(), key=lambda item: list(SIZES).index(item[0][1])):
        rate, ours = measured.pair(library, size, "delivered_hz"), measured.pair(OURS, size, "delivered_hz")
        rows.append(
            [
                size,
                library,
                *(_text(measured.pair(library, size, key), ".1f") for key in ("p50_us", "p99_us", "p999_us")),
                _text(rate, ",.0f"),
                _text(None if rate is None else rate * SIZES[size] / (1 << 30), ".2f"),
                _text(measured.pair(library, size, "loss"), ".1%"),
                _text(rate / ours if rate is not None and ours else None, ".2f"),
            ]
        )
    return rows


def single_rows(measured: DataPlaneRuns) -> Rows:
    """Rows of the table with producer and consumer in one process."""
    rows = []
    for size in measured.one_process:
        ours, bare = measured.single(size, "publish_consume_us"), measured.single(size, "bare_copy_us")
        ratio = ours / bare if ours and bare else None
        rows.append([size, _text(ours, ".2f"), _text(bare, ".2f"), _text(ratio, ".2f")])
    return rows


def target_rows(report: Report) -> Rows:
    """Rows of the table of targets."""
    return [[t.what, t.goal, _text(t.ratio, ".2f"), t.verdict] for t in report.targets()]


def codec_rows(codecs: dict[str, Any] | None) -> Rows:
    """Rows of the table of codecs."""
    keys = ("name", "bytes", "ours_us", "msgpack_pure_us", "json_us", "ratio_msgpack_pure", "ratio_json")
    return [[str(row[key]) for key in keys] for row in (codecs or {"rows": []})["rows"]]


def _text(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _tables(report: Report) -> Iterable[Table]:
    tables = [
        Table("Two processes", _PAIR_HEAD, pair_rows(report.measured)),
        Table("One process", _SINGLE_HEAD, single_rows(report.measured)),
        *(table for section in report.sections for table in section.tables),
        Table("Targets", _TARGET_HEAD, target_rows(report)),
        Table("Codecs", _CODEC_HEAD, codec_rows(report.codecs)),
    ]
    return (table for table in tables if table.rows)


# --- output formats


def show(report: Report, console: Console) -> None:
    """Prints the report on a terminal."""
    console.print(", ".join(f"{key} {value}" for key, value in report.machine.items()))
    console.print(", ".join(f"{key} {value}" for key, value in report.versions.items()))
    for note in report.conditions():
        console.print(note, style="dim")
    for title, head, rows in _tables(report):
        table = RichTable(title=title, title_justify="left")
        for index, name in enumerate(head):
            table.add_column(name, justify="left" if index == 0 else "right")
        for before, row in zip([None, *rows[:-1]], rows, strict=True):
            if title == "Two processes" and before is not None and before[0] != row[0]:
                table.add_section()
            table.add_row(*row, style=_VERDICT_COLOURS.get(row[-1]))
        console.print(table)
    for library, terms in report.terms.items():
        console.print(f"{library}: {terms}", style="dim")
    if report.disturbed:
        console.print(
            "disturbed: other processes used the machine, so these figures are not reliable", style="red"
        )
    for failure in report.failures:
        console.print(f"failed: {failure}", style="red")


def markdown(report: Report) -> str:
    """The report as Markdown."""
    blocks = [
        "Measured on " + ", ".join(f"{key} {value}" for key, value in report.machine.items()) + ".",
        "Versions: " + ", ".join(f"{key} {value}" for key, value in report.versions.items()) + ".",
        *report.conditions(),
    ]
    for title, head, rows in _tables(report):
        rule = ["---", *("---:" for _ in head[1:])]
        blocks.append(f"**{title}**")
        blocks.append("\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *rows)))
    blocks.append("\n".join(f"- {library}: {terms}" for library, terms in report.terms.items()))
    return "\n\n".join(blocks)


def update_page(report: Report, path: Path) -> None:
    """Writes the report between the two markers of the page. Refuses a disturbed report."""
    if report.disturbed:
        raise SystemExit(f"{path.name} is unchanged: other processes disturbed the run; try --patience 600")
    replace_between(path, lambda: markdown(report))


def replace_between(path: Path, text: Callable[[], str]) -> None:
    """Replaces the text between the two markers of a file."""
    before, begin, rest = path.read_text("utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{path} has no markers for the figures: add {BEGIN} and {END}")
    path.write_text(f"{before}{BEGIN}\n{text()}\n{END}{after}", "utf-8")
