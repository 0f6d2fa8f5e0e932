"""What was measured, as tables for people, JSON for programs, and Markdown for the README."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from . import driver_report as of_driver
from .dataplane import NSLOTS, OURS, QUIET_CORES, SIZES, Measured, Settings
from .driver_growth import Growth
from .driver_restart import Restarts
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
    growth: Growth
    restarts: Restarts

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
            "driver_growth": of_driver.growth_json(self.growth),
            "driver_restart": of_driver.restart_json(self.restarts),
            "targets": [_target_json(target) for target in targets(measured) + self.growth.targets()],
            "codecs": self.codecs,
            "failures": self.failures,
        }

    @property
    def failures(self) -> list[str]:
        return self.measured.failures + self.growth.failures + self.restarts.failures

    def others(self) -> float | None:
        """The most that other processes used during any measurement, in cores."""
        known = (part.others() for part in (self.measured, self.growth, self.restarts))
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
        if self.growth.runs:
            found.append(of_driver.growth_words())
        if self.restarts.runs:
            found.append(of_driver.restart_words(self.restarts))
        if others is not None:
            found.append(f"Others used at most {others:.2f} cores meanwhile.")
        return found


def _medians(measured: Measured, library: str, size: str) -> dict[str, float | None]:
    runs = measured.pairs[library, size]
    return {key: measured.pair(library, size, key) for key in (runs[0] if runs else {})}


def _target_json(target: Target) -> dict[str, Any]:
    return asdict(target) | {"goal": target.goal, "verdict": target.verdict}


# --- the rows, the same for the terminal and for Markdown

Rows = list[list[str]]
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
    found = targets(report.measured) if report.measured.pairs else []
    found += report.growth.targets() if report.growth.runs else []
    return [[t.what, t.goal, _text(t.ratio, ".2f"), t.verdict] for t in found]


def codec_rows(codecs: dict[str, Any] | None) -> Rows:
    keys = ("name", "bytes", "ours_us", "msgpack_pure_us", "json_us", "ratio_msgpack_pure", "ratio_json")
    return [[str(row[key]) for key in keys] for row in (codecs or {"rows": []})["rows"]]


def _text(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _sections(report: Report) -> Iterable[tuple[str, list[str], Rows]]:
    for title, head, rows in (
        ("Two processes", _PAIR_HEAD, pair_rows(report.measured)),
        ("One process", _SINGLE_HEAD, single_rows(report.measured)),
        ("Driver with many streams", of_driver.GROWTH_HEAD, of_driver.growth_rows(report.growth)),
        ("Driver restart", of_driver.RESTART_HEAD, of_driver.restart_rows(report.restarts)),
        ("Targets", _TARGET_HEAD, target_rows(report)),
        ("Codecs", _CODEC_HEAD, codec_rows(report.codecs)),
    ):
        if rows:
            yield title, head, rows


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
