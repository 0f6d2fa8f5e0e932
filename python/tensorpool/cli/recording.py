"""The command `tensorpool recording`: info, events, verify, repair, cut, merge, export, push, pull and ls."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from ..text import JsonMapping, safe_text
from .output import BAD, DIM, GOOD, WARN, columns, console, format_bytes, format_duration, key_values
from .params import CommandGroup, RecordingRef, StreamRef, Time

if TYPE_CHECKING:
    from ..recording import Gap
    from ..recording.copy import CopyResult
    from ..recording.inspect import RecordingInfo
    from ..recording.verify import Problem

EVENT_KINDS = ("change", "read", "result", "failed", "rejected", "lost")
# Terminal width from which on times are printed with seconds.
_WIDE = 100
_EPILOG = """
\b
Examples:
  tensorpool recording info DIR
  tensorpool recording verify DIR
  tensorpool recording cut DIR PART --stream 20000 --from 2026-01-31T12:00:00Z
  tensorpool recording export DIR frames.npy --stream 20000
  tensorpool recording push DIR s3://bucket/recording
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
  tensorpool recording verify s3://bucket/recording
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
_EVENTS = """
\b
Examples:
  tensorpool record --services --out commands
  tensorpool recording events commands
  tensorpool recording events commands --kind change --json
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
_PUSH = """
\b
Examples:
  tensorpool recording push DIR s3://bucket/recording
  tensorpool recording push DIR
"""
_PULL = """
\b
Examples:
  tensorpool recording pull s3://bucket/recording DIR
"""
_LS = """
\b
Examples:
  tensorpool recording ls s3://bucket
  tensorpool recording ls s3://bucket/recording --json
"""


_directory = click.argument("directory", metavar="DIR", type=RecordingRef())
_local_directory = click.argument("directory", metavar="DIR", type=click.Path(exists=True, file_okay=False))
_json_option = click.option("--json", "json_output", is_flag=True, help="JSON on stdout.")


def _range_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(
        (
            click.option("--first-seq", type=click.IntRange(0), help="First sequence."),
            click.option("--last-seq", type=click.IntRange(0), help="Last sequence."),
            click.option("--from", "start", type=Time(), help="Only frames received from this time (UTC)."),
            click.option("--to", "end", type=Time(), help="Only frames received up to this time."),
        )
    ):
        command = option(command)
    return command


@click.group(cls=CommandGroup, epilog=_EPILOG)
def recording() -> None:
    """Inspect, verify, repair, copy, export and archive recordings.

    DIR is a directory, or a URI of a store: s3://, gs://, abfs://, hdfs://, or what fsspec knows. Credentials
    come from the environment.
    """


@recording.command(epilog=_INFO)
@_directory
@_json_option
def info(directory: str, json_output: bool) -> None:
    """Print the streams, segments and gaps of the recording DIR, also while it is written."""
    from ..recording import info as read_info

    recording_info = read_info(directory)
    if json_output:
        click.echo(json.dumps(_info_json(recording_info), indent=2))
        return
    screen = console()
    screen.print(Text(str(recording_info.root), style="bold"), soft_wrap=True)
    screen.print(
        key_values(
            [
                ("format", f"version {recording_info.version}"),
                ("frames", f"{recording_info.rows:,} in {format_bytes(recording_info.size_bytes)}"),
                ("leases", ", ".join(lease.holder for lease in recording_info.leases) or "none"),
            ]
        )
    )
    screen.print()
    # A column for open segments only if there are any, and seconds only on a wide terminal: no column may be
    # truncated.
    open_column = ["open"] if any(stream.open_segments for stream in recording_info.streams) else []
    name_column = ["name"] if any(stream.name for stream in recording_info.streams) else []
    with_seconds = screen.width >= _WIDE
    table = columns(
        "stream", *name_column, "epochs", "segments", *open_column, "frames", "size", "from", "lasts",
        "missing",
        right=("stream", "epochs", "segments", "open", "frames", "size"), last_wraps=True,
    )  # fmt: skip
    for stream in recording_info.streams:
        missing = ", ".join(f"{reason} {count:,}" for reason, count in sorted(stream.missing.items()))
        first, last = stream.first_time_ns, stream.last_time_ns
        table.add_row(
            str(stream.stream_id), *([stream.name] if name_column else []), str(len(stream.ledgers)),
            f"{stream.segments:,}",
            *([str(stream.open_segments or "")] if open_column else []),
            f"{stream.rows:,}", format_bytes(stream.size_bytes), _time_text(first, with_seconds=with_seconds),
            "" if first is None or last is None else format_duration((last - first) / 1e9),
            Text(missing or "nothing", style=WARN if missing else DIM),
        )  # fmt: skip
    screen.print(table)


@recording.command(epilog=_EVENTS)
@_directory
@click.option(
    "--kind", "kinds", multiple=True, type=click.Choice(EVENT_KINDS), help="Only events of this kind."
)
@_json_option
def events(directory: str, kinds: tuple[str, ...], json_output: bool) -> None:
    """Print the events of services in the recording DIR: what `record --services` wrote.

    Kinds: `change` is an accepted command or value, `read` a request that changed nothing, then `result`,
    `failed`, `rejected`, and `lost` where events are missing.
    """
    from ..recording import open as open_recording
    from ..service import Event
    from .service import event_line, event_text

    for row in open_recording(directory).table("events").to_pylist():
        if kinds and row["kind"] not in kinds:
            continue
        event = Event.decode(row["message"])
        if json_output:
            click.echo(event_line(event))
        else:
            time_text = _time_text(row["receive_time_ns"], with_seconds=True)
            text = safe_text(f"{event.tag} {event.key} = {event_text(event)}")
            click.echo(f"{time_text}  {row['kind']:<8} {text}")


@recording.command(epilog=_VERIFY)
@_directory
@_json_option
def verify(directory: str, json_output: bool) -> None:
    """Read the whole recording DIR and check every file against its checksums.

    Exit status 1 if there is damage. A note (!) names something that affects no frame and no row.
    """
    from ..recording import verify as verify_recording

    with _progress("verifying") as progress:
        result = verify_recording(directory, progress=progress)
    if json_output:
        report = {
            "ok": result.ok, "rows": result.rows, "segments": result.segments,
            "size_bytes": result.size_bytes,
            "problems": [_problem_json(problem) for problem in result.problems],
            "notes": [_problem_json(note) for note in result.notes],
            "ledgers": [ledger.to_json() for ledger in result.ledgers],
        }  # fmt: skip
        click.echo(json.dumps(report, indent=2))
        sys.exit(0 if result.ok else 1)
    screen = console()
    for problem in result.problems:
        screen.print(Text(f"✗ {problem}", style=BAD), soft_wrap=True)
    for note in result.notes:
        screen.print(Text(f"! {note}", style=WARN), soft_wrap=True)
    for ledger in result.ledgers:
        screen.print(f"stream {ledger.stream_id}, epoch {ledger.epoch}: {ledger}", soft_wrap=True)
    totals = f"{result.rows:,} frames in {result.segments:,} segments, {format_bytes(result.size_bytes)}"
    if result.ok:
        text = "every frame and row as written, see the notes" if result.notes else "all as written"
        screen.print(Text(f"✓ {totals}: {text}", style=GOOD))
        return
    screen.print(Text(f"✗ {totals}: {len(result.problems)} problems", style=BAD))
    hint = "push the recording again" if "://" in directory else ""
    click.echo(f"hint: {hint or f'tensorpool recording repair {shlex.quote(directory)}'}", err=True)
    sys.exit(1)


@recording.command(epilog=_REPAIR)
@_local_directory
@_json_option
def repair(directory: str, json_output: bool) -> None:
    """Repair the recording DIR: intact frames and rows are kept, lost frames become gaps.

    Damaged files are moved to DIR/_damaged, not deleted. Fails while a writer is running.
    """
    from ..recording import repair as repair_recording

    with _progress("repairing") as progress:
        result = repair_recording(directory, progress=progress)
    if json_output:
        report = {
            "recovered": [str(segment) for segment in result.recovered],
            "rewritten": [str(path) for path in result.rewritten],
            "quarantined": [str(path) for path in result.quarantined],
            "put_back": [str(path) for path in result.put_back],
            "tables": [
                {"path": str(table.path), "rows": table.rows, "lost_rows": table.lost_rows}
                for table in result.tables
            ],
            "indexes": [str(path) for path in result.indexes],
            "lost": [_gap_json(gap) for gap in result.lost],
            "manifest_rebuilt": result.manifest_rebuilt,
            "marker_rewritten": result.marker_rewritten,
        }
        click.echo(json.dumps(report, indent=2))
        return
    screen = console()
    for segment in result.recovered:
        screen.print(f"recovered {segment}", soft_wrap=True)
    for path in result.rewritten:
        screen.print(f"rewritten {path}", soft_wrap=True)
    for table in result.tables:
        screen.print(Text(f"rewritten {table}", style=WARN if table.lost_rows else ""), soft_wrap=True)
    for path in result.indexes:
        screen.print(f"rewritten {path}", soft_wrap=True)
    for path in result.put_back:
        screen.print(f"put back {path}", soft_wrap=True)
    for path in result.quarantined:
        screen.print(f"quarantined {path}", soft_wrap=True)
    for gap in result.lost:
        screen.print(
            Text(
                f"lost stream {gap.stream_id}, epoch {gap.epoch}: {gap.first_seq} to {gap.last_seq}",
                style=WARN,
            )
        )
    if result.manifest_rebuilt:
        screen.print("the manifest was rebuilt")
    if result.marker_rewritten:
        screen.print("recording.json was written again")
    if not result.changed:
        screen.print(Text("✓ nothing to repair", style=GOOD))


@recording.command(epilog=_CUT)
@_directory
@click.argument("target", metavar="NEW", type=click.Path(file_okay=False))
@click.option(
    "--stream",
    "streams",
    multiple=True,
    type=StreamRef(),
    help="Only this stream, by id or name; may be repeated.",
)
@_range_options
@_json_option
def cut(
    directory: str, target: str, streams: tuple[int | str, ...], first_seq: int | None, last_seq: int | None,
    start: int | None, end: int | None, json_output: bool,
) -> None:  # fmt: skip
    """Copy a part of the recording DIR into the new recording NEW."""
    from ..recording import cut as cut_recording

    with _progress("cutting") as progress:
        result = cut_recording(
            directory, target, streams=streams or None, seq=(first_seq, last_seq), time=_bounds(start, end),
            progress=progress,
        )  # fmt: skip
    _print_copy(result, target, json_output)


@recording.command(epilog=_MERGE)
@click.argument("directories", metavar="DIR...", nargs=-1, required=True, type=click.Path(exists=True))
@click.option("--into", "target", required=True, type=click.Path(file_okay=False), help="The new recording.")
@_json_option
def merge(directories: tuple[str, ...], target: str, json_output: bool) -> None:
    """Merge several recordings into one. A frame that several of them have is written once."""
    from ..recording import merge as merge_recordings

    with _progress("merging") as progress:
        result = merge_recordings(directories, target, progress=progress)
    _print_copy(result, target, json_output)


def _print_copy(result: CopyResult, target: str, json_output: bool) -> None:
    if json_output:
        report = {
            "path": target, "rows": result.rows, "payload_bytes": result.payload_bytes,
            "streams": sorted(result.streams),
        }  # fmt: skip
        click.echo(json.dumps(report, indent=2))
    else:
        click.echo(f"{result.rows:,} frames, {format_bytes(result.payload_bytes)}, in {target}", err=True)


@recording.command(epilog=_EXPORT)
@_directory
@click.argument("target", metavar="FILE", type=click.Path())
@click.option(
    "--format", "form", type=click.Choice(["npy", "npz", "zarr", "parquet", "mcap"]), help="[from the name]"
)
@click.option(
    "--stream",
    "stream_id",
    type=StreamRef(),
    help="Id or name; required if there are several, except for mcap.",
)
@click.option("--epoch", type=click.IntRange(0), help="Only this epoch.")
@_range_options
@_json_option
def export(
    directory: str, target: str, form: str | None, stream_id: int | str | None, epoch: int | None,
    first_seq: int | None, last_seq: int | None, start: int | None, end: int | None, json_output: bool,
) -> None:  # fmt: skip
    """Write frames of the recording DIR to FILE: a numpy array or archive, Zarr, Parquet, or MCAP.

    Zarr, Parquet and MCAP have the name, tags and attributes of the stream too.
    """
    from ..recording import export as export_recording

    try:
        with _progress("exporting") as progress:
            count = export_recording(
                directory, target, form=form, stream_id=stream_id, epoch=epoch, seq=(first_seq, last_seq),
                time=_bounds(start, end), progress=progress,
            )  # fmt: skip
    except (FileExistsError, ValueError) as error:
        if type(error) not in (FileExistsError, ValueError):
            raise
        raise click.UsageError(str(error)) from None
    if json_output:
        click.echo(json.dumps({"path": target, "rows": count}))
    else:
        click.echo(f"{count:,} frames in {target}", err=True)


@recording.command(epilog=_PUSH)
@_local_directory
@click.argument("uri", metavar="[URI]", required=False)
@_json_option
def push(directory: str, uri: str | None, json_output: bool) -> None:
    """Upload the sealed segments of the recording DIR that its archive URI does not have.

    Every upload is read back and compared. An interrupted push is continued by the next one. The directory
    remembers its archive: the next push needs no URI, and retention keeps what is not archived.
    """
    from ..recording import push as push_recording

    try:
        with _progress("pushing") as progress:
            result = push_recording(directory, uri, progress=progress)
    except KeyboardInterrupt:
        click.echo(f"stopped; tensorpool recording push {shlex.quote(directory)} continues it", err=True)
        raise
    if json_output:
        report = {
            "uri": result.uri, "segments": result.segments, "uploaded_bytes": result.uploaded_bytes,
            "resumed": result.resumed, "repeated": result.repeated, "tables": result.tables,
            "archived": result.archived,
        }  # fmt: skip
        click.echo(json.dumps(report, indent=2))
        return
    click.echo(
        f"{result.segments:,} segments, {format_bytes(result.uploaded_bytes)} uploaded; "
        f"{result.archived:,} in {result.uri}",
        err=True,
    )


@recording.command(epilog=_PULL)
@click.argument("uri", metavar="URI")
@click.argument("directory", metavar="DIR", type=click.Path(file_okay=False))
@_json_option
def pull(uri: str, directory: str, json_output: bool) -> None:
    """Copy the recording at URI into the local directory DIR, and check every frame of it.

    An interrupted pull is continued by the next one.
    """
    from ..recording import pull as pull_recording

    try:
        with _progress("pulling") as progress:
            result = pull_recording(uri, directory, progress=progress)
    except KeyboardInterrupt:
        click.echo(
            f"stopped; tensorpool recording pull {uri} {shlex.quote(directory)} continues it", err=True
        )
        raise
    if json_output:
        report = {
            "path": str(result.path), "segments": result.segments, "present": result.present,
            "size_bytes": result.size_bytes,
        }  # fmt: skip
        click.echo(json.dumps(report, indent=2))
        return
    count = result.segments + result.present
    click.echo(f"{count:,} segments, {format_bytes(result.size_bytes)}, in {directory}", err=True)


@recording.command("ls", epilog=_LS)
@click.argument("place", metavar="URI", type=RecordingRef())
@_json_option
def list_command(place: str, json_output: bool) -> None:
    """List the recording at URI, or the recordings directly below it: streams, frames, size and time."""
    from ..recording import list_recordings

    found = list_recordings(place)
    if json_output:
        report = [
            {
                "uri": each.uri, "streams": list(each.streams), "segments": each.segments, "rows": each.rows,
                "size_bytes": each.size_bytes, "first_time_ns": each.first_time_ns,
                "last_time_ns": each.last_time_ns,
            }
            for each in found
        ]  # fmt: skip
        click.echo(json.dumps(report, indent=2))
        return
    if not found:
        click.echo(f"no recording in {place}", err=True)
        return
    table = columns(
        "streams", "segments", "frames", "size", "from", "recording",
        right=("streams", "segments", "frames", "size"), last_wraps=True,
    )  # fmt: skip
    for each in found:
        table.add_row(
            str(len(each.streams)), f"{each.segments:,}", f"{each.rows:,}", format_bytes(each.size_bytes),
            _time_text(each.first_time_ns, with_seconds=False), each.uri,
        )  # fmt: skip
    console().print(table)


def _bounds(start: int | None, end: int | None) -> tuple[int | None, int | None] | None:
    return None if start is None and end is None else (start, end)


@contextmanager
def _progress(title: str) -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar on a terminal; None without one."""
    screen = console(err=True)
    if not screen.is_terminal:
        yield None
        return
    bar = Progress(
        TextColumn(title), BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TimeRemainingColumn(),
        console=screen, transient=True,
    )  # fmt: skip
    with bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _time_text(ns: int | None, *, with_seconds: bool) -> str:
    if ns is None:
        return ""
    return datetime.fromtimestamp(ns // 10**9, UTC).strftime(
        f"%Y-%m-%d %H:%M{':%S' if with_seconds else ''}Z"
    )


def _info_json(recording_info: RecordingInfo) -> Mapping[str, object]:
    return {
        "path": str(recording_info.root),
        "version": recording_info.version,
        "rows": recording_info.rows,
        "size_bytes": recording_info.size_bytes,
        "streams": [
            {
                "stream_id": stream.stream_id, "name": stream.name or None, "segments": stream.segments,
                "open_segments": stream.open_segments, "rows": stream.rows, "size_bytes": stream.size_bytes,
                "first_time_ns": _int_text(stream.first_time_ns),
                "last_time_ns": _int_text(stream.last_time_ns),
                "epochs": [ledger.to_json() for ledger in stream.ledgers],
            }
            for stream in recording_info.streams
        ],
        "leases": [
            {"holder": lease.holder, "deadline_ns": str(lease.deadline_ns)} for lease in recording_info.leases
        ],
    }  # fmt: skip


def _int_text(value: int | None) -> str | None:
    """A number as text, because JSON numbers are exact up to 2**53 only."""
    return None if value is None else str(value)


def _problem_json(problem: Problem) -> JsonMapping:
    return {
        "kind": problem.kind, "path": str(problem.path), "offset": problem.offset, "message": problem.message,
    }  # fmt: skip


def _gap_json(gap: Gap) -> JsonMapping:
    return {
        "stream_id": gap.stream_id, "epoch": str(gap.epoch), "first_seq": str(gap.first_seq),
        "count": gap.count, "reason": gap.reason,
    }  # fmt: skip
