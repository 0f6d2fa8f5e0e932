"""How a pipeline looks on a screen: its stages while it runs, and its account at the end."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from .screen import DIM, WARN, columns, console, format_bytes, format_duration, pairs

if TYPE_CHECKING:
    from ..pipeline import Status

_LINE_S = 10.0


class Screen:
    """Progress on stderr: a table that stays in place on a terminal, a line now and then elsewhere."""

    def __init__(self, *, quiet: bool) -> None:
        self._console = console(err=True)
        self._quiet = quiet
        self._is_live = sys.stderr.isatty() and not quiet
        self._live: Live | None = None
        self._next = 0.0
        self._shown: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, words: str) -> None:
        if not self._quiet:
            self._console.print(words, style=DIM)

    def show(self, found: Status, behind: dict[int, int]) -> None:
        if self._quiet:
            return
        if self._is_live:
            if self._live is None:
                self._live = Live(console=self._console, refresh_per_second=4)
                self._live.start()
            self._live.update(Group(stages_table(found), _behind(behind)))
            return
        latest = [one.batch for one in found.stages.values()]
        if latest != self._shown and time.monotonic() >= self._next:
            self._shown, self._next = latest, time.monotonic() + _LINE_S
            self._console.print(line(found, behind))


def line(found: Status, behind: dict[int, int]) -> str:
    """`bronze 12,000 rows 61 MiB/s  silver …  gold …  behind 0`"""
    parts = [
        f"{name} batch {one.batch}: {one.rows:,} rows {format_bytes(one.bytes_per_s)}/s"
        for name, one in found.stages.items()
        if one.batch >= 0
    ]
    return "  ".join([*parts, f"behind {sum(behind.values()):,} frames"])


def _behind(behind: dict[int, int]) -> Text:
    late = sum(behind.values())
    return Text(f"behind the recordings: {late:,} frames", style=WARN if late else DIM)


def stages_table(found: Status) -> Table:
    table = columns(
        "stage",
        "batch",
        "rows",
        "MiB/s",
        "took",
        "since the beginning",
        right=("batch", "rows", "MiB/s", "took"),
        last_wraps=True,
    )
    for name, one in found.stages.items():
        if one.batch < 0:
            table.add_row(name, "", "", "", "", Text("nothing yet", style=DIM))
            continue
        rate = f"{one.bytes_per_s / 2**20:,.0f}" if one.bytes else ""
        table.add_row(
            name, str(one.batch), f"{one.rows:,}", rate, format_duration(one.seconds), _totals(one.totals)
        )
    return table


def _totals(totals: dict[str, Any]) -> str:
    words = []
    for name, value in totals.items():
        if isinstance(value, dict):
            inner = ", ".join(f"{reason} {count:,}" for reason, count in sorted(value.items()))
            words.append(f"{name}: {inner or 'none'}")
        elif name == "bytes":
            words.append(format_bytes(value))
        else:
            words.append(f"{value:,} {name}")
    return "  ".join(words)


def show_status(screen: Console, found: Status) -> None:
    screen.print(Text(str(found.root), style="bold"), soft_wrap=True)
    latest = max(found.last_frames.values(), default=None)
    rows: list[tuple[str, Any]] = [
        ("pipeline", found.pipeline_id),
        ("running", "yes" if found.is_running else "no"),
        (
            "streams",
            f"{len(found.last_frames)}" + ("" if latest is None else f", latest frame {_clock(latest)}"),
        ),
    ]
    quiet = [
        f"{stream} since {_clock(at)}"
        for stream, at in sorted(found.last_frames.items())
        if latest is not None and latest - at > 60_000_000_000
    ]
    if quiet:
        rows.append(("gone quiet", Text(", ".join(quiet), style=WARN)))
    for name, count in found.pending.items():
        rows.append((f"waiting in {name}", f"{count:,} frames"))
    screen.print(pairs(rows))
    screen.print()
    screen.print(stages_table(found))


def _clock(at_ns: int) -> str:
    return datetime.fromtimestamp(at_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
