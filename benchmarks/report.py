"""What was measured, as tables for people, JSON for programs, and Markdown for the README."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from .dataplane import NSLOTS, OURS, QUIET_CORES, SIZES, Measured, Settings
from .parts import Figures, Part, Rows
from .targets import Target, targets

BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
_COLOURS = {"reached": "green", "missed": "red", "not measured": "dim"}


@dataclass(frozen=True, slots=True)
class Report:
    machine: dict[str, str]
    versions: dict[str, str]
    terms: dict[str, str]
    settings: Settings
    measured: Measured
    codecs: dict[str, Any] | None
    parts: list[Part]

    def to_json(self) -> dict[str, Any]:
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
            **{part.key: part.data for part in self.parts},
            "targets": [_target_json(target) for target in self.targets()],
            "codecs": self.codecs,
            "failures": self.failures,
        }

    @property
    def failures(self) -> list[str]:
        return [*self.measured.failures, *(failure for part in self.parts for failure in part.failures)]

    def targets(self) -> list[Target]:
        found = targets(self.measured) if self.measured.pairs else []
        return found + [target for part in self.parts for target in part.targets]

    def others(self) -> float | None:
        """The most that other processes used during any measurement, in cores."""
        known = (self.measured.others(), *(part.others for part in self.parts))
        return max((others for others in known if others is not None), default=None)

    @property
    def disturbed(self) -> bool:
        """Something else ran meanwhile: neither figures nor ratios mean much."""
        return (self.others() or 0.0) >= QUIET_CORES

    def conditions(self) -> list[str]:
        measured, others, found = self.measured, self.others(), []
        if measured.pairs or measured.one_process:
            found.append(
                f"Medians of {self.settings.runs} runs; a ring of 256 slots for 64 B and of 8 for the "
                "others, and as many messages buffered where a library can be told; two processes that spin; "
                "a frame is filled by one copy of its size and read in its first and last word; latency from "
                "before the fill, at 1 kHz."
            )
        found += [words for part in self.parts for words in part.words]
        if others is not None:
            found.append(f"Others used at most {others:.2f} cores meanwhile.")
        return found


def _medians(measured: Measured, library: str, size: str) -> dict[str, float | None]:
    runs = measured.pairs[library, size]
    return {key: measured.pair(library, size, key) for key in (runs[0] if runs else {})}


def _target_json(target: Target) -> dict[str, Any]:
    return asdict(target) | {"goal": target.goal, "verdict": target.verdict}


# --- the rows, the same for the terminal and for Markdown

_PAIR_HEAD = ["size", "library", "p50 µs", "p99 µs", "p99.9 µs", "delivered /s", "GiB/s", "lost", "÷ ours"]
_SINGLE_HEAD = ["size", "publish + consume µs", "bare copy µs", "ratio"]
_TARGET_HEAD = ["target", "to reach", "measured", ""]
_CODEC_HEAD = ["message", "bytes", "ours µs", "msgpack (pure) µs", "json µs", "÷ msgpack", "÷ json"]


def pair_rows(measured: Measured) -> Rows:
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


def single_rows(measured: Measured) -> Rows:
    rows = []
    for size in measured.one_process:
        ours, bare = measured.single(size, "publish_consume_us"), measured.single(size, "bare_copy_us")
        ratio = ours / bare if ours and bare else None
        rows.append([size, _text(ours, ".2f"), _text(bare, ".2f"), _text(ratio, ".2f")])
    return rows


def target_rows(report: Report) -> Rows:
    return [[t.what, t.goal, _text(t.ratio, ".2f"), t.verdict] for t in report.targets()]


def codec_rows(codecs: dict[str, Any] | None) -> Rows:
    keys = ("name", "bytes", "ours_us", "msgpack_pure_us", "json_us", "ratio_msgpack_pure", "ratio_json")
    return [[str(row[key]) for key in keys] for row in (codecs or {"rows": []})["rows"]]


def _text(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _sections(report: Report) -> Iterable[Figures]:
    found = [
        Figures("Two processes", _PAIR_HEAD, pair_rows(report.measured)),
        Figures("One process", _SINGLE_HEAD, single_rows(report.measured)),
        *(table for part in report.parts for table in part.tables),
        Figures("Targets", _TARGET_HEAD, target_rows(report)),
        Figures("Codecs", _CODEC_HEAD, codec_rows(report.codecs)),
    ]
    return (table for table in found if table.rows)


# --- the forms


def show(report: Report, console: Console) -> None:
    console.print(", ".join(f"{key} {value}" for key, value in report.machine.items()))
    console.print(", ".join(f"{key} {value}" for key, value in report.versions.items()))
    for words in report.conditions():
        console.print(words, style="dim")
    for title, head, rows in _sections(report):
        table = Table(title=title, title_justify="left")
        for index, name in enumerate(head):
            table.add_column(name, justify="left" if index == 0 else "right")
        for before, row in zip([None, *rows[:-1]], rows, strict=True):
            if title == "Two processes" and before is not None and before[0] != row[0]:
                table.add_section()
            table.add_row(*row, style=_COLOURS.get(row[-1]))
        console.print(table)
    for library, how in report.terms.items():
        console.print(f"{library}: {how}", style="dim")
    if report.disturbed:
        console.print("disturbed: other processes ran meanwhile, so these figures mean little", style="red")
    for failure in report.failures:
        console.print(f"failed: {failure}", style="red")


def markdown(report: Report) -> str:
    parts = [
        "Measured on " + ", ".join(f"{key} {value}" for key, value in report.machine.items()) + ".",
        "Versions: " + ", ".join(f"{key} {value}" for key, value in report.versions.items()) + ".",
        *report.conditions(),
    ]
    for title, head, rows in _sections(report):
        rule = ["---", *("---:" for _ in head[1:])]
        parts.append(f"**{title}**")
        parts.append("\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *rows)))
    parts.append("\n".join(f"- {library}: {how}" for library, how in report.terms.items()))
    return "\n\n".join(parts)


def update_readme(report: Report, path: Path) -> None:
    """Puts the figures between the two markers, if they are worth it."""
    if report.disturbed:
        raise SystemExit(f"{path.name} stays as it was: something else ran meanwhile; try --patience 600")
    replace_between(path, lambda: markdown(report))


def replace_between(path: Path, text: Callable[[], str]) -> None:
    before, begin, rest = path.read_text("utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{path} has no place for the figures: add {BEGIN} and {END}")
    path.write_text(f"{before}{BEGIN}\n{text()}\n{END}{after}", "utf-8")
