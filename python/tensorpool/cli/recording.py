"""`tensorpool recording`: look at recordings, check them, mend them, take parts of them, hand them on."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from .output import BAD, DIM, GOOD, WARN, columns, console, format_bytes, format_duration, key_values
from .params import CommandGroup, Time

if TYPE_CHECKING:
    from ..recording.copy import CopyResult
    from ..recording.inspect import RecordingInfo

_WIDE = 100
_EPILOG = """
\b
Examples:
  tensorpool recording info DIR
  tensorpool recording verify DIR
  tensorpool recording cut DIR PART --stream 20000 --from 2026-01-31T12:00:00Z
  tensorpool recording export DIR frames.npy --stream 20000
"""
_INFO = """
\b
Examples:
  tensorpool recording info DIR
  tensorpool recording info DIR --json | jq '.streams[] | {stream_id, rows}'
"""
_VERIFY = """
\b
Examples:
  tensorpool recording verify DIR
  tensorpool recording verify DIR --json | jq '.problems'
"""
_REPAIR = """
\b
Examples:
  tensorpool recording repair DIR
"""
_CUT = """
\b
Examples:
  tensorpool recording cut DIR PART --first-seq 1000 --last-seq 1999
  tensorpool recording cut DIR PART --to 2026-01-31T12:05:00Z
"""
_MERGE = """
\b
Examples:
  tensorpool recording merge MONDAY TUESDAY --into WEEK
"""
_EXPORT = """
\b
Examples:
  tensorpool recording export DIR frames.npy --stream 20000
  tensorpool recording export DIR frames.zarr --stream 20000 --last-seq 999
  tensorpool recording export DIR all.mcap
"""


_directory = click.argument("directory", metavar="DIR", type=click.Path(exists=True, file_okay=False))
_as_json = click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")


def _range_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(
        (
            click.option("--first-seq", type=click.IntRange(0), help="The first sequence to take."),
            click.option("--last-seq", type=click.IntRange(0), help="The last sequence to take."),
            click.option("--from", "start", type=Time(), help="Take what was received from then on (UTC)."),
            click.option("--to", "end", type=Time(), help="Take what was received until then."),
        )
    ):
        command = option(command)
    return command


@click.group(cls=CommandGroup, epilog=_EPILOG)
def recording() -> None:
    """Look at recordings, check and mend them, take parts of them, hand them on."""


@recording.command(epilog=_INFO)
@_directory
@_as_json
def info(directory: str, as_json: bool) -> None:
    """Print what is in the recording DIR, also while it is written."""
    from ..recording import info as look

    found = look(directory)
    if as_json:
        click.echo(json.dumps(_info_json(found), indent=2))
        return
    screen = console()
    screen.print(Text(str(found.root), style="bold"), soft_wrap=True)
    screen.print(
        key_values(
            [
                ("format", f"version {found.version}"),
                ("frames", f"{found.rows:,} in {format_bytes(found.size_bytes)}"),
                ("leases", ", ".join(lease.holder for lease in found.leases) or "none"),
            ]
        )
    )
    screen.print()
    # What is open is rare, and the seconds matter less than whole columns.
    open_too = ["open"] if any(one.open_segments for one in found.streams) else []
    with_seconds = screen.width >= _WIDE
    table = columns(
        "stream", "epochs", "segments", *open_too, "frames", "size", "from", "lasts", "missing",
        right=("stream", "epochs", "segments", "open", "frames", "size"), last_wraps=True,
    )  # fmt: skip
    for one in found.streams:
        missing = ", ".join(f"{reason} {count:,}" for reason, count in sorted(one.missing.items()))
        first, last = one.first_time_ns, one.last_time_ns
        table.add_row(
            str(one.stream_id), str(len(one.ledgers)), f"{one.segments:,}",
            *([str(one.open_segments or "")] if open_too else []),
            f"{one.rows:,}", format_bytes(one.size_bytes), _time_text(first, with_seconds=with_seconds),
            "" if first is None or last is None else format_duration((last - first) / 1e9),
            Text(missing or "nothing", style=WARN if missing else DIM),
        )  # fmt: skip
    screen.print(table)


@recording.command(epilog=_VERIFY)
@_directory
@_as_json
def verify(directory: str, as_json: bool) -> None:
    """Read all of the recording DIR and check it against its checksums.

    Exit status 1 if something is not as it was written.
    """
    from ..recording import verify as check

    with _progress("verifying") as progress:
        found = check(directory, progress=progress)
    if as_json:
        report = {
            "ok": found.ok, "rows": found.rows, "segments": found.segments, "size_bytes": found.size_bytes,
            "problems": [_problem_json(one) for one in found.problems],
            "notes": [_problem_json(one) for one in found.notes],
            "ledgers": [_ledger_json(one) for one in found.ledgers],
        }  # fmt: skip
        click.echo(json.dumps(report, indent=2))
        sys.exit(0 if found.ok else 1)
    screen = console()
    for one in found.problems:
        screen.print(Text(f"✗ {one}", style=BAD), soft_wrap=True)
    for one in found.notes:
        screen.print(Text(f"! {one}", style=WARN), soft_wrap=True)
    for ledger in found.ledgers:
        screen.print(f"stream {ledger.stream_id}, epoch {ledger.epoch}: {ledger}", soft_wrap=True)
    words = f"{found.rows:,} frames in {found.segments:,} segments, {format_bytes(found.size_bytes)}"
    if found.ok:
        screen.print(Text(f"✓ {words}: all as written", style=GOOD))
        return
    screen.print(Text(f"✗ {words}: {len(found.problems)} problems", style=BAD))
    click.echo(f"hint: tensorpool recording repair {shlex.quote(directory)}", err=True)
    sys.exit(1)


@recording.command(epilog=_REPAIR)
@_directory
@_as_json
def repair(directory: str, as_json: bool) -> None:
    """Mend the recording DIR: what reads is kept, what does not becomes a gap.

    Damaged files are set aside under DIR/_damaged, not deleted. Refuses while a writer is at work.
    """
    from ..recording import repair as mend

    with _progress("repairing") as progress:
        done = mend(directory, progress=progress)
    if as_json:
        report = {
            "recovered": [str(one) for one in done.recovered],
            "rewritten": [str(path) for path in done.rewritten],
            "set_aside": [str(path) for path in done.set_aside],
            "lost": [_gap_json(gap) for gap in done.lost],
            "manifest_rebuilt": done.manifest_rebuilt,
        }
        click.echo(json.dumps(report, indent=2))
        return
    screen = console()
    for one in done.recovered:
        screen.print(f"recovered {one}", soft_wrap=True)
    for path in done.rewritten:
        screen.print(f"rewritten {path}", soft_wrap=True)
    for path in done.set_aside:
        screen.print(f"set aside {path}", soft_wrap=True)
    for gap in done.lost:
        screen.print(
            Text(
                f"lost stream {gap.stream_id}, epoch {gap.epoch}: {gap.first_seq} to {gap.last_seq}",
                style=WARN,
            )
        )
    if done.manifest_rebuilt:
        screen.print("the manifest was made anew")
    if not done.changed:
        screen.print(Text("✓ nothing to repair", style=GOOD))


@recording.command(epilog=_CUT)
@_directory
@click.argument("target", metavar="NEW", type=click.Path(file_okay=False))
@click.option("--stream", "streams", multiple=True, type=int, help="Only this stream; may be repeated.")
@_range_options
@_as_json
def cut(
    directory: str, target: str, streams: tuple[int, ...], first_seq: int | None, last_seq: int | None,
    start: int | None, end: int | None, as_json: bool,
) -> None:  # fmt: skip
    """Copy a part of the recording DIR into the new recording NEW."""
    from ..recording import cut as copy

    with _progress("cutting") as progress:
        done = copy(
            directory, target, streams=streams or None, seq=(first_seq, last_seq), time=_bounds(start, end),
            progress=progress,
        )  # fmt: skip
    _say_copied(done, target, as_json)


@recording.command(epilog=_MERGE)
@click.argument("directories", metavar="DIR...", nargs=-1, required=True, type=click.Path(exists=True))
@click.option("--into", "target", required=True, type=click.Path(file_okay=False), help="The new recording.")
@_as_json
def merge(directories: tuple[str, ...], target: str, as_json: bool) -> None:
    """Make one recording of several. A frame that more than one has is taken once."""
    from ..recording import merge as join

    with _progress("merging") as progress:
        done = join(directories, target, progress=progress)
    _say_copied(done, target, as_json)


def _say_copied(done: CopyResult, target: str, as_json: bool) -> None:
    if as_json:
        report = {
            "path": target, "rows": done.rows, "payload_bytes": done.payload_bytes,
            "streams": sorted(done.streams),
        }  # fmt: skip
        click.echo(json.dumps(report, indent=2))
    else:
        click.echo(f"{done.rows:,} frames, {format_bytes(done.payload_bytes)}, in {target}", err=True)


@recording.command(epilog=_EXPORT)
@_directory
@click.argument("target", metavar="FILE", type=click.Path())
@click.option("--format", "form", type=click.Choice(["npy", "npz", "zarr", "mcap"]), help="[from the name]")
@click.option("--stream", "stream_id", type=int, help="Needed if there are several, except for mcap.")
@click.option("--epoch", type=click.IntRange(0), help="Only this epoch.")
@_range_options
@_as_json
def export(
    directory: str, target: str, form: str | None, stream_id: int | None, epoch: int | None,
    first_seq: int | None, last_seq: int | None, start: int | None, end: int | None, as_json: bool,
) -> None:  # fmt: skip
    """Write frames of the recording DIR to FILE: a numpy stack or archive, Zarr, or MCAP."""
    from ..recording import export as write

    try:
        with _progress("exporting") as progress:
            count = write(
                directory, target, form=form, stream_id=stream_id, epoch=epoch, seq=(first_seq, last_seq),
                time=_bounds(start, end), progress=progress,
            )  # fmt: skip
    except (FileExistsError, ValueError) as error:
        if type(error) not in (FileExistsError, ValueError):
            raise
        raise click.UsageError(str(error)) from None
    if as_json:
        click.echo(json.dumps({"path": target, "rows": count}))
    else:
        click.echo(f"{count:,} frames in {target}", err=True)


def _bounds(start: int | None, end: int | None) -> tuple[int | None, int | None] | None:
    return None if start is None and end is None else (start, end)


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on a terminal; nothing in a pipe."""
    screen = console(err=True)
    if not screen.is_terminal:
        yield None
        return
    bar = Progress(
        TextColumn(what), BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TimeRemainingColumn(),
        console=screen, transient=True,
    )  # fmt: skip
    with bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _time_text(ns: int | None, *, with_seconds: bool) -> str:
    if ns is None:
        return ""
    return datetime.fromtimestamp(ns // 10**9, UTC).strftime(
        f"%Y-%m-%d %H:%M{':%S' if with_seconds else ''}Z"
    )


def _info_json(found: RecordingInfo) -> dict[str, Any]:
    return {
        "path": str(found.root),
        "version": found.version,
        "rows": found.rows,
        "size_bytes": found.size_bytes,
        "streams": [
            {
                "stream_id": one.stream_id, "segments": one.segments, "open_segments": one.open_segments,
                "rows": one.rows, "size_bytes": one.size_bytes,
                "first_time_ns": _text(one.first_time_ns), "last_time_ns": _text(one.last_time_ns),
                "epochs": [_ledger_json(ledger) for ledger in one.ledgers],
            }
            for one in found.streams
        ],
        "leases": [{"holder": one.holder, "deadline_ns": str(one.deadline_ns)} for one in found.leases],
    }  # fmt: skip


def _text(value: int | None) -> str | None:
    return None if value is None else str(value)


def _ledger_json(ledger: Any) -> dict[str, Any]:
    return {
        "stream_id": ledger.stream_id, "epoch": str(ledger.epoch), "first_seq": str(ledger.first_seq),
        "last_seq": str(ledger.last_seq), "span": ledger.span, "rows": ledger.rows, "gaps": ledger.gaps,
        "balanced": ledger.balanced,
    }  # fmt: skip


def _problem_json(one: Any) -> dict[str, Any]:
    return {"kind": one.kind, "path": str(one.path), "offset": one.offset, "message": one.message}


def _gap_json(gap: Any) -> dict[str, Any]:
    return {
        "stream_id": gap.stream_id, "epoch": str(gap.epoch), "first_seq": str(gap.first_seq),
        "count": gap.count, "reason": gap.reason,
    }  # fmt: skip
