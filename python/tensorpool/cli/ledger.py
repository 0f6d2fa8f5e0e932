"""`tensorpool ledger`: every frame of every path, delivered or dropped by reason."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace

import click
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..context import Context
from ..monitor.ledger import LedgerRow, Verdict
from ..monitor.listener import SystemMonitor
from ..text import safe_text
from .options import ConnectOptions, connect_options
from .output import BAD, DIM, GOOD, WARN, columns, console, echo
from .params import StreamRef

_EPILOG = """
\b
Examples:
  tensorpool ledger                once; exit status 1 on a mismatch
  tensorpool ledger --watch        live, until Ctrl-C
  tensorpool ledger --stream 20000 --json
"""
_STYLES = {
    Verdict.EXACT: GOOD,
    Verdict.WAITING: DIM,
    Verdict.SETTLING: WARN,
    Verdict.MISMATCH: BAD,
    Verdict.GONE: DIM,
}


@click.command(epilog=_EPILOG)
@click.option("--watch", "is_live", is_flag=True, help="Update until Ctrl-C.")
@click.option("--stream", "wanted", type=StreamRef(), multiple=True, help="Only this stream, by id or name.")
@click.option(
    "--settle",
    default=10.0,
    show_default=True,
    type=click.FloatRange(0, 3600),
    help="Seconds to wait until all ledgers are exact.",
)
@connect_options
def ledger(to: ConnectOptions, is_live: bool, wanted: tuple[int | str, ...], settle: float) -> None:
    """Show that published = delivered + dropped by reason, for every stream and path.

    Joins the reports of producers, consumers, recorders and bridges. A difference that stays is a mismatch:
    exit status 1.
    """
    with to.context() as ctx:
        rows = _watch(ctx, wanted, to.json_output) if is_live else _once(ctx, wanted, settle, to.json_output)
    mismatches = [row for row in rows if row.verdict is Verdict.MISMATCH]
    for row in mismatches:
        echo(f"mismatch: stream {row.stream_id}, {row.path} {_who(row)}: {row.problem}", err=True)
    if not rows:
        click.echo("no reports: no producer, consumer, recorder or bridge sends any", err=True)
    if mismatches:
        sys.exit(1)


def _rows_of(live: SystemMonitor, wanted: tuple[int | str, ...]) -> list[LedgerRow]:
    names = {stream.stream_id: stream.name for stream in live.snapshot().streams}
    rows = [replace(row, name=names.get(row.stream_id, "")) for row in live.ledger_rows()]
    return [row for row in rows if not wanted or row.stream_id in wanted or (row.name and row.name in wanted)]


def _once(ctx: Context, wanted: tuple[int | str, ...], settle: float, json_output: bool) -> list[LedgerRow]:
    with SystemMonitor(ctx.connection) as live:
        live.settle(settle)
        rows = _rows_of(live, wanted)
    if json_output:
        click.echo(json.dumps([row.to_json() for row in rows], indent=2))
    else:
        console().print(ledger_table(rows))
    return rows


def _watch(ctx: Context, wanted: tuple[int | str, ...], json_output: bool) -> list[LedgerRow]:
    screen = console()
    rows: list[LedgerRow] = []
    with SystemMonitor(ctx.connection) as live:
        try:
            if json_output or not screen.is_terminal:
                while True:
                    live.watch(1.0)
                    rows = _rows_of(live, wanted)
                    time_ns = str(time.time_ns())
                    for row in rows:
                        output = {"time_ns": time_ns, **row.to_json()}
                        click.echo(json.dumps(output) if json_output else _line(row))
                    sys.stdout.flush()
            with Live(ledger_table([], is_live=True), console=screen, auto_refresh=False) as table:
                while True:
                    live.watch(0.5)
                    rows = _rows_of(live, wanted)
                    table.update(ledger_table(rows, is_live=True), refresh=True)
        except KeyboardInterrupt:
            pass
    return rows


def ledger_table(rows: list[LedgerRow], *, is_live: bool = False) -> Table:
    """The ledger as a table."""
    # Without waiting frames the reasons get that room; a live table keeps its columns.
    with_waiting = is_live or any(row.waiting for row in rows)
    name_column = ["name"] if any(row.name for row in rows) else []
    table = columns(
        "stream",
        *name_column,
        "path",
        "who",
        "published",
        "delivered",
        *(["waiting"] if with_waiting else []),
        "verdict",
        "dropped",
        right=("stream", "published", "delivered", "waiting"),
        last_wraps=True,
    )
    for row in rows:
        table.add_row(
            str(row.stream_id),
            *([row.name] if name_column else []),
            row.path,
            _who(row) + (" (ended)" if row.has_ended else ""),
            f"{row.published:,}",
            f"{row.delivered:,}",
            *([f"{row.waiting:,}" if row.waiting else ""] if with_waiting else []),
            Text(str(row.verdict), style=_STYLES[row.verdict]),
            _dropped(row) or (row.problem if row.verdict is not Verdict.EXACT else ""),
        )
    return table


def _line(row: LedgerRow) -> str:
    return (
        f"{row.stream_id}  {row.path} {_who(row)}  published {row.published} = delivered {row.delivered} "
        f"+ dropped ({_dropped(row) or 0}) + waiting {row.waiting}  {row.verdict}"
    )


def _who(row: LedgerRow) -> str:
    return safe_text(f"{row.label} {row.who}" if row.label else row.who)


def _dropped(row: LedgerRow) -> str:
    return ", ".join(f"{reason} {count:,}" for reason, count in sorted(row.dropped.items()) if count)
