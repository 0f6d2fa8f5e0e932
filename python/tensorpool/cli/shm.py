"""`tensorpool shm`: inspection of regions in shared memory."""

from __future__ import annotations

import json
import sys

import click
from rich.console import Console
from rich.text import Text

from ..shm.inspect import EpochReport, RegionReport, RingReport, inspect, to_json
from .output import (
    BAD,
    DIM,
    GOOD,
    WARN,
    columns,
    console,
    format_duration,
    format_shape,
    key_values,
    size_literal,
)
from .params import CommandGroup

_DEFAULT_SLOTS = 8

_EPILOG = """
\b
Examples:
  tensorpool shm inspect /dev/shm/tensorpool-$USER/default/20000
  tensorpool shm inspect header.ring --slots 64
  tensorpool shm inspect 'shm:file?path=/dev/shm/…/1.pool' --json
"""


@click.group(cls=CommandGroup, epilog=_EPILOG)
def shm() -> None:
    """Inspect regions in shared memory, of any owner."""


@shm.command("inspect", epilog=_EPILOG)
@click.argument("target", metavar="PATH|URI")
@click.option(
    "--slots", default=_DEFAULT_SLOTS, show_default=True, type=click.IntRange(0),
    help="How many slots of a header ring to list, newest first.",
)  # fmt: skip
@click.option("--json", "json_output", is_flag=True, help="JSON on stdout.")
def inspect_command(target: str, slots: int, json_output: bool) -> None:
    """Print and check a region, all regions of an epoch directory, or all epochs of a stream directory.

    The command only reads, so it is safe on a live system. The exit status is 1 if a rule is broken. A stale
    region and a dead owner are warnings.
    """
    reports = inspect(target)
    problems = sum(len(report.all_problems()) for report in reports)
    if json_output:
        click.echo(json.dumps([to_json(report) for report in reports], indent=2))
    else:
        screen = console()
        for number, report in enumerate(reports):
            if number:
                screen.print()
            _show(screen, report, slots)
    sys.exit(1 if problems else 0)


def _show(screen: Console, report: EpochReport, slots: int) -> None:
    screen.print(Text(str(report.directory), style="bold"), soft_wrap=True)
    first = next((region for region in report.regions if region.superblock is not None), None)
    if first is not None and (head := first.superblock) is not None:
        screen.print(
            key_values(
                [
                    ("stream", head.stream_id),
                    ("epoch", head.epoch),
                    ("layout", f"version {head.layout_version}, {head.nslots} slots"),
                    ("owner", _owner(first)),
                    ("activity", _activity(first)),
                ]
            )
        )
    screen.print()
    table = columns(
        "file", "kind", "pool", "stride", "bytes", "owner", "mode", "", right=("pool", "stride", "bytes")
    )
    for region in report.regions:
        table.add_row(*_row(region))
    screen.print(table)
    for region in report.regions:
        if region.ring is not None:
            _show_ring(screen, region.ring, slots)
    screen.print()
    problems, warnings = report.all_problems(), report.all_warnings()
    for text in problems:
        screen.print(Text(f"✗ {text}", style=BAD), soft_wrap=True)
    for text in warnings:
        screen.print(Text(f"! {text}", style=WARN), soft_wrap=True)
    if not problems:
        screen.print(Text("✓ no rule is broken", style=GOOD))


def _row(region: RegionReport) -> tuple[Text | str, ...]:
    head = region.superblock
    is_pool = head is not None and region.kind == "payload pool"
    return (
        region.path.name,
        region.kind,
        str(head.pool_id) if is_pool and head else "",
        size_literal(head.stride_bytes) if is_pool and head else "",
        f"{region.size_bytes:,}",
        f"{region.owner}:{region.group}",
        f"{region.mode:04o}",
        Text("✗", style=BAD) if region.problems else Text("✓", style=GOOD),
    )


def _owner(region: RegionReport) -> Text:
    pid = region.superblock.pid if region.superblock else 0
    alive = Text("alive", style=GOOD) if region.pid_alive else Text("dead", style=WARN)
    return Text.assemble(f"process {pid}, ", alive)


def _activity(region: RegionReport) -> str:
    age = region.activity_age_ns
    if age is None:
        return "unknown"
    return f"{format_duration(age / 1e9)} ago" if age >= 0 else "from another clock"


def _show_ring(screen: Console, ring: RingReport, limit: int) -> None:
    newest = "nothing was committed yet" if ring.newest_seq is None else f"newest sequence {ring.newest_seq}"
    counts = ", ".join(
        f"{ring.count(state)} {state.replace('_', ' ')}" for state in ("committed", "in_progress", "empty")
    )
    screen.print()
    screen.print(Text.assemble("slots: ", newest, "; ", counts))
    shown = ring.newest(limit)
    if not shown:
        return
    table = columns(
        "slot", "seq", "state", "shape", "dtype", "bytes", "pool", right=("slot", "seq", "bytes", "pool")
    )
    for slot in shown:
        table.add_row(
            str(slot.index),
            str(slot.seq),
            Text("in progress", style=WARN) if slot.state == "in_progress" else slot.state,
            format_shape(slot.shape),
            slot.dtype or "",
            "" if slot.values_bytes is None else f"{slot.values_bytes:,}",
            "" if slot.pool_id is None else str(slot.pool_id),
        )
    screen.print(table)
    left_out = ring.count("committed") + ring.count("in_progress") - len(shown)
    if left_out:
        screen.print(Text(f"{left_out} more; --slots {len(ring.slots)} lists all", style=DIM))
