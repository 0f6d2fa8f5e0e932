"""`tensorpool doctor`: checks of this machine; `tensorpool doctor sizing`: the size of a stream."""

from __future__ import annotations

import json
import sys
from collections import Counter
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


_LABELS = {"per_consumer_bytes": "per-consumer"}


@click.command(epilog=_SIZING_EPILOG)
@click.option("--rate", type=float, required=True, metavar="HZ", help="Frames a second, at most.")
@click.option("--bytes", "size", required=True, metavar="N", help="The largest frame: 1920000, or 4MiB.")
@click.option(
    "--latency", type=float, required=True, metavar="SECONDS",
    help="The longest time from the commit of a frame until the slowest consumer has finished with it.",
)  # fmt: skip
@click.option(
    "--consumers", type=int, default=1, show_default=True, metavar="N", help="How many consumers read it."
)
@click.option(
    "--safety", type=float, default=2.0, show_default=True, metavar="FACTOR",
    help="Factor on top of the latency; rounding up to a power of two adds to it.",
)  # fmt: skip
@click.option(
    "--shm-base-dir", type=click.Path(file_okay=False), default="/dev/shm", show_default=True,
    envvar="TENSORPOOL_SHM__BASE_DIR", help="Directory of the shared memory.",
)  # fmt: skip
@click.option("--json", "json_output", is_flag=True, help="JSON on stdout.")
def sizing(
    rate: float,
    size: str,
    latency: float,
    consumers: int,
    safety: float,
    shm_base_dir: str,
    json_output: bool,
) -> None:
    """Compute slots, stride and memory of a stream, with the arithmetic.

    Creates nothing. Exit status 1 if the stream does not fit this machine.
    """
    from ..doctor import CheckStatus, Needs, check_fit, size_stream
    from ..doctor.memory import Space, read_last_level_cache, read_meminfo
    from ..doctor.sizing import available_memory

    base = Path(shm_base_dir)
    needs = Needs(rate, parse_size(size), latency, consumers, safety)
    result = size_stream(needs, cache_bytes=read_last_level_cache())
    check = check_fit(result, base, Space.from_path(base), available_memory(read_meminfo()))
    if json_output:
        output = {
            "status": check.status,
            "check": check.to_json(),
            "config": _config(result),
            **result.to_json(),
        }
        click.echo(json.dumps(output, indent=2))
        sys.exit(1 if check.status is CheckStatus.FAIL else 0)
    screen = console()
    table = columns("what", "value", "reckoning", right=("value",), last_wraps=True)
    for figure in result.figures:
        name, value = _figure_texts(figure.name, figure.value)
        table.add_row(Text(name), Text(value), Text(figure.reckoning))
    screen.print(table)
    screen.print()
    screen.print(Text(_config(result)))
    for note in result.notes:
        screen.print(Text(f"! {note}", style=WARN))
    mark, style = {CheckStatus.OK: ("✓", GOOD), CheckStatus.WARN: ("!", WARN), CheckStatus.FAIL: ("✗", BAD)}[
        check.status
    ]
    screen.print(Text(f"{mark} {check.found}", style=style))
    if check.meaning:
        screen.print(Text(f"  {check.meaning}\n  → {check.remedy}"))
    sys.exit(1 if check.status is CheckStatus.FAIL else 0)


def _figure_texts(name: str, value: int) -> tuple[str, str]:
    """The name of a figure without its unit, and the value with it."""
    label, is_rate, _ = name.partition("_bytes_per_s")
    if is_rate:
        return label, f"{format_bytes(value)}/s"
    label, is_size, _ = name.partition("_bytes")
    text = format_bytes(value) if is_size else str(value)
    return _LABELS.get(name, label.replace("_", " ")), text


def _config(result: Sizing) -> str:
    """The settings for the configurations of the driver and the producer."""
    lines = [
        "[[driver.streams]]",
        "stream_id = 10000",
        f"nslots = {result.nslots}",
        f'pools = ["{size_literal(result.stride_bytes)}"]',
    ]
    if result.needs_term_setting:
        lines += ["", "[aeron]", f'descriptor_term = "{size_literal(result.descriptor_term_bytes)}"']
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
@click.option("--aeron-dir", help="Directory of the media driver. [AERON_DIR, else Aeron's default]")
@click.option("--json", "json_output", is_flag=True, help="JSON on stdout.")
@click.pass_context
def doctor(ctx: click.Context, config: str | None, aeron_dir: str | None, json_output: bool) -> None:
    """Check shared memory, limits, permissions, huge pages, drivers, clock and software.

    Each check is ok, warn or fail; one that is not ok has its meaning and a remedy. Reads only: starts
    nothing and changes nothing. Exit status 1 if a check fails.
    """
    if ctx.invoked_subcommand is not None:
        return
    from .. import __version__
    from ..doctor import Check, CheckStatus, run_checks, worst

    marks = {
        CheckStatus.OK: Text("✓", style=GOOD),
        CheckStatus.WARN: Text("!", style=WARN),
        CheckStatus.FAIL: Text("✗", style=BAD),
    }

    def row(check: Check) -> tuple[Text, ...]:
        finding = Text(check.found)
        if check.meaning:
            finding.append(f"\n{check.meaning}", style=WARN if check.status is CheckStatus.WARN else BAD)
        if check.remedy:
            finding.append("\n→ ", style="bold").append(check.remedy)
        return marks[check.status], Text(check.name), finding

    checks = run_checks(__version__, config_file=config, aeron_dir=aeron_dir)
    status = worst(checks)
    if json_output:
        click.echo(json.dumps({"status": status, "checks": [check.to_json() for check in checks]}, indent=2))
        sys.exit(1 if status is CheckStatus.FAIL else 0)
    screen = console()
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, style=DIM)
    table.add_column(overflow="fold")
    for check in checks:
        table.add_row(*row(check))
    screen.print(table)
    counts = Counter(check.status for check in checks)
    screen.print()
    match status:
        case CheckStatus.OK:
            screen.print(Text(f"✓ all {len(checks)} checks are ok", style=GOOD))
        case CheckStatus.WARN:
            screen.print(Text(f"! {counts[CheckStatus.WARN]} of {len(checks)} checks warn", style=WARN))
        case CheckStatus.FAIL:
            also = f", {counts[CheckStatus.WARN]} warn" if counts[CheckStatus.WARN] else ""
            screen.print(Text(f"✗ {counts[CheckStatus.FAIL]} of {len(checks)} checks fail{also}", style=BAD))
    sys.exit(1 if status is CheckStatus.FAIL else 0)


doctor.add_command(sizing)
