"""`tensorpool doctor`: is this machine fit, and if not, what is to be done."""

from __future__ import annotations

import json
import sys

import click
from rich.table import Table
from rich.text import Text

from .groups import Noun
from .screen import BAD, DIM, GOOD, WARN, console
from .sizing import sizing

_EPILOG = """
\b
Examples:
  tensorpool doctor
  tensorpool doctor --config /etc/tensorpool.toml
  tensorpool doctor --json | jq '.checks[] | select(.status != "ok")'
  tensorpool doctor sizing --rate 200 --bytes 4MiB --latency 0.1
"""


@click.group(cls=Noun, epilog=_EPILOG, invoke_without_command=True)
@click.option("--config", type=click.Path(dir_okay=False), help="A TOML file. [TENSORPOOL_CONFIG]")
@click.option("--aeron-dir", help="Where the media driver is. [AERON_DIR, else Aeron's default]")
@click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
@click.pass_context
def doctor(ctx: click.Context, config: str | None, aeron_dir: str | None, as_json: bool) -> None:
    """Check shared memory, limits, permissions, huge pages, drivers, clock and software.

    Each check is ok, warn or fail; what is not ok says what it means and what to do. Looks only: starts
    nothing and changes nothing. Exit status 1 if a check fails.
    """
    if ctx.invoked_subcommand is not None:
        return
    from .. import __version__
    from ..doctor import Check, Status, run_checks, worst

    marks = {
        Status.OK: Text("✓", style=GOOD),
        Status.WARN: Text("!", style=WARN),
        Status.FAIL: Text("✗", style=BAD),
    }

    def row(check: Check) -> tuple[Text, ...]:
        words = Text(check.found)
        if check.meaning:
            words.append(f"\n{check.meaning}", style=WARN if check.status is Status.WARN else BAD)
        if check.remedy:
            words.append("\n→ ", style="bold").append(check.remedy)
        return marks[check.status], Text(check.name), words

    checks = run_checks(__version__, config_file=config, aeron_dir=aeron_dir)
    status = worst(checks)
    if as_json:
        click.echo(json.dumps({"status": status, "checks": [one.as_json() for one in checks]}, indent=2))
        sys.exit(1 if status is Status.FAIL else 0)
    screen = console()
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, style=DIM)
    table.add_column(overflow="fold")
    for check in checks:
        table.add_row(*row(check))
    screen.print(table)
    counts = {one: sum(check.status is one for check in checks) for one in Status}
    screen.print()
    match status:
        case Status.OK:
            screen.print(Text(f"✓ all {len(checks)} checks are well", style=GOOD))
        case Status.WARN:
            screen.print(Text(f"! {counts[Status.WARN]} of {len(checks)} checks warn", style=WARN))
        case Status.FAIL:
            also = f", {counts[Status.WARN]} warn" if counts[Status.WARN] else ""
            screen.print(Text(f"✗ {counts[Status.FAIL]} of {len(checks)} checks fail{also}", style=BAD))
    sys.exit(1 if status is Status.FAIL else 0)


doctor.add_command(sizing)
