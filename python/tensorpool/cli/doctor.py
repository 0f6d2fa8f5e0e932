"""`tensorpool doctor`: is this machine fit, and if not, what is to be done.

`tensorpool doctor sizing`: how large a stream has to be, and whether it fits this machine.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table
from rich.text import Text

from ..units import parse_size
from .output import BAD, DIM, GOOD, WARN, columns, console, format_bytes, size_literal
from .params import CommandGroup

if TYPE_CHECKING:
    from ..doctor import Sizing

_SIZING_EPILOG = """
\b
Examples:
  tensorpool doctor sizing --rate 200 --bytes 4MiB --latency 0.1
  tensorpool doctor sizing --rate 30 --bytes 2MiB --latency 1 --consumers 20
  tensorpool doctor sizing --rate 30 --bytes 8MiB --latency 1 --json
"""


@click.command(epilog=_SIZING_EPILOG)
@click.option("--rate", type=float, required=True, metavar="HZ", help="Frames a second, at most.")
@click.option("--bytes", "size", required=True, metavar="N", help="The largest frame: 1920000, or 4MiB.")
@click.option(
    "--latency", type=float, required=True, metavar="SECONDS",
    help="The longest from the commit of a frame until the slowest consumer is done with it.",
)  # fmt: skip
@click.option("--consumers", type=int, default=1, show_default=True, metavar="N", help="How many read it.")
@click.option(
    "--safety", type=float, default=2.0, show_default=True, metavar="FACTOR",
    help="For what the latency leaves out; rounding up to a power of two comes on top.",
)  # fmt: skip
@click.option(
    "--shm-base-dir", type=click.Path(file_okay=False), default="/dev/shm", show_default=True,
    envvar="TENSORPOOL_SHM__BASE_DIR", help="Where the memory is to be.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
def sizing(
    rate: float, size: str, latency: float, consumers: int, safety: float, shm_base_dir: str, as_json: bool
) -> None:
    """Slots, stride and memory of a stream, with the arithmetic.

    Makes nothing. Exit status 1 if it does not fit this machine.
    """
    from ..doctor import Needs, Status, check_fit, size_stream
    from ..doctor.memory import Space
    from ..doctor.sizing import available_memory

    base = Path(shm_base_dir)
    needs = Needs(rate, parse_size(size), latency, consumers, safety)
    found = size_stream(needs)
    try:
        meminfo = Path("/proc/meminfo").read_text()
    except OSError:
        meminfo = ""
    check = check_fit(found, base, Space.of(base), available_memory(meminfo))
    if as_json:
        told = {"status": check.status, "check": check.as_json(), "config": _config(found), **found.as_json()}
        click.echo(json.dumps(told, indent=2))
        sys.exit(1 if check.status is Status.FAIL else 0)
    screen = console()
    table = columns("what", "value", "reckoning", right=("value",), last_wraps=True)
    for figure in found.figures:
        words, unit = _text(figure.name, figure.value)
        table.add_row(Text(words), Text(unit), Text(figure.reckoning))
    screen.print(table)
    screen.print()
    screen.print(Text(_config(found)))
    for note in found.notes:
        screen.print(Text(f"! {note}", style=WARN))
    mark, style = {Status.OK: ("✓", GOOD), Status.WARN: ("!", WARN), Status.FAIL: ("✗", BAD)}[check.status]
    screen.print(Text(f"{mark} {check.found}", style=style))
    if check.meaning:
        screen.print(Text(f"  {check.meaning}\n  → {check.remedy}"))
    sys.exit(1 if check.status is Status.FAIL else 0)


def _text(name: str, value: int) -> tuple[str, str]:
    """`pool_bytes` as people say it, and its value with a unit."""
    plain, is_rate, _ = name.partition("_bytes_per_s")
    if is_rate:
        return plain, f"{format_bytes(value)}/s"
    plain, is_size, _ = name.partition("_bytes")
    return plain.replace("_", " "), format_bytes(value) if is_size else str(value)


def _config(found: Sizing) -> str:
    """What to write into a driver's configuration, and into that of the producer."""
    lines = [
        "[[driver.streams]]",
        "stream_id = 10000",
        f"nslots = {found.nslots}",
        f'pools = ["{size_literal(found.stride_bytes)}"]',
    ]
    if found.names_term:
        lines += ["", "[aeron]", f'descriptor_term = "{size_literal(found.descriptor_term_bytes)}"']
    return "\n".join(lines) + "\n"


_EPILOG = """
\b
Examples:
  tensorpool doctor
  tensorpool doctor --config /etc/tensorpool.toml
  tensorpool doctor --json | jq '.checks[] | select(.status != "ok")'
  tensorpool doctor sizing --rate 200 --bytes 4MiB --latency 0.1
"""


@click.group(cls=CommandGroup, epilog=_EPILOG, invoke_without_command=True)
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
