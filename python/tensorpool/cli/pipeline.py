"""`tensorpool pipeline`: recordings to tables with Spark, their status, and a report on them."""

from __future__ import annotations

import base64
import json
import os
import shlex
import sys
import time
import webbrowser
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..runtime.runner import Signals
from ..text import safe_text
from .output import BAD, DIM, GOOD, WARN, columns, console, format_bytes, format_duration, key_values
from .params import CommandGroup, Time

if TYPE_CHECKING:
    import pyarrow as pa

    from ..pipeline import PipelineSettings, Status
    from ..pipeline.functions import Callables
    from ..pipeline.status import Counts


_EPILOG = """
\b
Examples:
  tensorpool pipeline init --recording /data/recording --out /data/tables
  tensorpool pipeline validate pipeline.toml
  tensorpool pipeline run pipeline.toml --once
  tensorpool pipeline status /data/tables
  tensorpool pipeline sql /data/tables "select count(*) from silver_frames"
  tensorpool pipeline rerun pipeline.toml --from 2026-03-01
  tensorpool pipeline compact /data/tables
  tensorpool pipeline migrate /data/tables /data/delta-tables
  tensorpool pipeline report /data/tables --open
"""
_INIT_EPILOG = """
\b
Examples:
  tensorpool pipeline init
  tensorpool pipeline init --recording /data/recording --out /data/tables
  tensorpool pipeline init --declarative project --recording /data/recording
"""
_VALIDATE_EPILOG = """
\b
Examples:
  tensorpool pipeline validate pipeline.toml
  tensorpool pipeline validate pipeline.toml --json
"""
_RUN_EPILOG = """
\b
Examples:
  tensorpool pipeline run pipeline.toml --once
  tensorpool pipeline run pipeline.toml               (until Ctrl-C)
  tensorpool pipeline run pipeline.py --master spark://head:7077
  tensorpool pipeline run pipeline.toml --once --remote sc://head --json
"""
_STATUS_EPILOG = """
\b
Examples:
  tensorpool pipeline status /data/tables
  tensorpool pipeline status /data/tables --name east
  tensorpool pipeline status pipeline.toml --json | jq .stages.silver.totals
"""
_SQL_EPILOG = """
\b
Examples:
  tensorpool pipeline sql /data/tables             (tables and columns)
  tensorpool pipeline sql /data/tables "select count(*) from silver_frames"
  tensorpool pipeline sql s3://lake/tables "select * from gold_quality" --json
  tensorpool pipeline sql /data/tables --create delta --database lab
"""
_RERUN_EPILOG = """
\b
Examples:
  tensorpool pipeline rerun pipeline.toml --from 2026-03-01
  tensorpool pipeline rerun pipeline.toml --from 2026-03-01T08:00:00Z
  tensorpool pipeline rerun pipeline.py --function brightness
"""
_COMPACT_EPILOG = """
\b
Examples:
  tensorpool pipeline compact /data/tables
  tensorpool pipeline compact pipeline.toml --json
"""
_MIGRATE_EPILOG = """
\b
Examples:
  tensorpool pipeline migrate /data/tables /data/delta-tables
  tensorpool pipeline migrate /data/tables s3://lake/tables --json
"""
_REPORT_EPILOG = """
\b
Examples:
  tensorpool pipeline report TABLES                       writes TABLES.html
  tensorpool pipeline report TABLES --out report.html --open
  tensorpool pipeline report TABLES --json | jq .totals
"""

_LINE_PERIOD_S = 10.0
_QUIET_NS = 60_000_000_000
"""A stream whose latest frame is that much older than the newest of all is quiet."""

_definition = click.argument(
    "definition", metavar="DEFINITION", type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
_location = click.argument("location", metavar="ROOT|DEFINITION")
_json_output = click.option("--json", "json_output", is_flag=True, help="JSON on stdout.")

# --- progress and status


class PipelineProgress:
    """Progress on stderr: a live table on a terminal, a line every few seconds elsewhere."""

    def __init__(self, *, quiet: bool) -> None:
        self._console = console(err=True)
        self._quiet = quiet
        self._is_live = sys.stderr.isatty() and not quiet
        self._live: Live | None = None
        self._next_line_s = 0.0
        self._printed_batches: list[int] = []

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

    def message(self, text: str) -> None:
        """Prints a message."""
        if not self._quiet:
            self._console.print(text, style=DIM)

    def show(self, state: Status, behind: dict[int, int]) -> None:
        """Shows the stages, and the frames by stream that are not in the tables yet."""
        if self._quiet:
            return
        if self._is_live:
            if self._live is None:
                self._live = Live(console=self._console, refresh_per_second=4)
                self._live.start()
            self._live.update(Group(stages_table(state), _behind_text(behind)))
            return
        batches = [stage.batch for stage in state.stages.values()]
        if batches != self._printed_batches and time.monotonic() >= self._next_line_s:
            self._printed_batches, self._next_line_s = batches, time.monotonic() + _LINE_PERIOD_S
            self._console.print(progress_line(state, behind))


def progress_line(state: Status, behind: dict[int, int]) -> str:
    """A line as in `bronze batch 3: 12,000 rows 61 MiB/s  silver …  gold …  behind 0 frames`."""
    parts = [
        f"{name} batch {stage.batch}: {stage.rows:,} rows {format_bytes(stage.bytes_per_s)}/s"
        for name, stage in state.stages.items()
        if stage.batch >= 0
    ]
    return "  ".join([*parts, f"behind {sum(behind.values()):,} frames"])


def _behind_text(behind: dict[int, int]) -> Text:
    frames = sum(behind.values())
    return Text(f"behind the recordings: {frames:,} frames", style=WARN if frames else DIM)


def stages_table(state: Status) -> Table:
    """The latest batch and the totals of each stage."""
    from ..pipeline.status import counts_of

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
    for name, stage in state.stages.items():
        if stage.batch < 0:
            table.add_row(name, "", "", "", "", Text("nothing yet", style=DIM))
            continue
        rate = f"{stage.bytes_per_s / 2**20:,.0f}" if stage.bytes else ""
        took = format_duration(stage.seconds)
        table.add_row(
            name, str(stage.batch), f"{stage.rows:,}", rate, took, _totals_text(counts_of(name, stage.totals))
        )
    return table


def _totals_text(totals: Counts) -> str:
    parts = []
    for name, value in totals.items():
        if isinstance(value, Mapping):
            inner = ", ".join(f"{reason} {count:,}" for reason, count in sorted(value.items()))
            parts.append(f"{name}: {inner or 'none'}")
        elif name == "bytes":
            parts.append(format_bytes(value))
        else:
            parts.append(f"{value:,} {name}")
    return "  ".join(parts)


def print_status(screen: Console, state: Status) -> None:
    """Prints how far the pipeline is, its quiet streams and its stages."""
    screen.print(Text(str(state.root), style="bold"), soft_wrap=True)
    latest = max(state.last_frames.values(), default=None)
    rows: list[tuple[str, Any]] = [
        ("pipeline", state.pipeline_id if state.name is None else f"{state.name} ({state.pipeline_id})"),
        ("running", "yes" if state.is_running else "no"),
        (
            "streams",
            f"{len(state.last_frames)}" + ("" if latest is None else f", latest frame {_time_text(latest)}"),
        ),
    ]
    quiet = [
        f"{stream_id} since {_time_text(last_ns)}"
        for stream_id, last_ns in sorted(state.last_frames.items())
        if latest is not None and latest - last_ns > _QUIET_NS
    ]
    if quiet:
        rows.append(("gone quiet", Text(", ".join(quiet), style=WARN)))
    for name, count in state.pending.items():
        rows.append((f"waiting in {name}", f"{count:,} frames"))
    screen.print(key_values(rows))
    screen.print()
    screen.print(stages_table(state))


def _time_text(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


# --- commands


@click.group(cls=CommandGroup, epilog=_EPILOG)
def pipeline() -> None:
    """Turn recordings into tables: bronze as recorded, silver checked and aligned, gold measured."""


@pipeline.command(epilog=_INIT_EPILOG)
@click.argument("file", metavar="[FILE]", default="pipeline.toml", type=click.Path(path_type=Path))
@click.option(
    "--recording",
    "recordings",
    multiple=True,
    help="A recording to read, a directory or a URI; several are one pipeline.",
)
@click.option("--out", default="tables", help="Directory or URI of the tables.")
@click.option(
    "--declarative",
    "project",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write a project for Spark's Declarative Pipelines there instead.",
)
def init(file: Path, recordings: tuple[str, ...], out: str, project: Path | None) -> None:
    """Write a definition to begin with. An existing file is left alone."""
    from ..pipeline.builder import starter_definition

    if project is not None:
        _write_project(project, recordings)
        return
    try:
        with file.open("x") as new_file:
            new_file.write(starter_definition(file.name, recordings, out))
    except FileExistsError:
        raise click.UsageError(f"{file} exists already; name another file") from None
    click.echo(
        f"{file} is written; tensorpool pipeline run {shlex.quote(str(file))} --once runs it", err=True
    )


def _write_project(directory: Path, recordings: tuple[str, ...]) -> None:
    """Writes a project for Spark's Declarative Pipelines, and prints how to run it."""
    from ..pipeline import declarative, definition

    settings = None
    if recordings:
        roots = [root if "://" in root else os.path.abspath(root) for root in recordings]
        settings = definition.parse({"pipeline": {"recordings": roots, "out": str(directory / "tables")}})
    declarative.write_project(directory, settings)
    if settings is None:
        click.echo(f"set the recordings in {directory / 'pipeline.toml'}, then:", err=True)
    click.echo(f"cd {shlex.quote(str(directory))} && SPARK_CONF_DIR=conf spark-pipelines run", err=True)


@pipeline.command(epilog=_VALIDATE_EPILOG)
@_definition
@_json_output
def validate(definition: Path, json_output: bool) -> None:
    """Check a definition, its recordings and its functions, without Spark.

    Exit status 1 with a list of all faults: the key, its line, and allowed values.
    """
    from ..pipeline.functions import load_function
    from ..pipeline.run import check_recording

    settings, callables = _read(definition)
    for root in settings.recordings:
        check_recording(root)
    for function in settings.functions:
        if function.name not in callables:
            load_function(function.function, str(definition.absolute().parent))
    if json_output:
        from ..pipeline.run import describe

        click.echo(json.dumps({"ok": True, "definition": describe(settings)}, indent=2))
    else:
        click.echo(f"{definition} is valid: {_summary(settings)}", err=True)


@pipeline.command(epilog=_RUN_EPILOG)
@_definition
@click.option("--once", is_flag=True, help="Process the frames recorded so far through all stages, and end.")
@click.option("--master", help="Where Spark runs: local[*] without it, local[4], spark://host:7077.")
@click.option("--remote", help="A Spark Connect server instead: sc://host:15002.")
@click.option("--quiet", is_flag=True, help="No progress.")
@_json_output
def run(
    definition: Path, once: bool, master: str | None, remote: str | None, quiet: bool, json_output: bool
) -> None:
    """Run a definition, in TOML or in Python, until Ctrl-C or SIGTERM.

    Continues where the previous run ended, even after a crash. If two runs write the same tables, one of
    them stops and says so, and no row is written twice.
    """
    if master is not None and remote is not None:
        raise click.UsageError("--master and --remote both name a Spark: leave one out")
    from ..pipeline import run as run_pipeline

    settings, callables = _read(definition)
    requested = announced = False

    def request_stop() -> None:
        nonlocal requested
        requested = True

    def should_stop() -> bool:
        nonlocal announced
        if requested and not announced:
            announced = True
            progress.message("ending after the current micro-batch; Ctrl-C again ends it at once")
        return requested

    with Signals(stop=request_stop), PipelineProgress(quiet=quiet) as progress:
        progress.message("starting Spark")
        state = run_pipeline(
            settings,
            master=master,
            remote=remote,
            once=once,
            place=str(definition.absolute().parent),
            callables=callables,
            look=progress.show,
            stop=should_stop,
        )
    if json_output:
        click.echo(json.dumps(state.to_json(), indent=2))
    else:
        print_status(console(), state)


@pipeline.command(epilog=_STATUS_EPILOG)
@_location
@click.option("--name", help="Which pipeline, if ROOT has several.")
@_json_output
def status(location: str, name: str | None, json_output: bool) -> None:
    """Show how far a pipeline is, by its directory of tables or its definition; also while it runs."""
    from ..pipeline import status as read_status

    state = read_status(_root(location), name or _pipeline_name(location))
    if json_output:
        click.echo(json.dumps(state.to_json(), indent=2))
        return
    print_status(console(), state)


@pipeline.command(epilog=_SQL_EPILOG)
@_location
@click.argument("query", metavar="[QUERY]", required=False)
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1), help="Rows to show.")
@click.option(
    "--create",
    type=click.Choice(["delta", "tensorpool"]),
    help="Print the statements that register the tables in a catalog of Spark, for its Delta connector or "
    "for this package.",
)
@click.option("--database", help="The database of --create: lab, or catalog.lab.")
@click.option("--json", "json_output", is_flag=True, help="All rows as JSON on stdout; bytes are base64.")
def sql(
    location: str,
    query: str | None,
    limit: int,
    create: Literal["delta", "tensorpool"] | None,
    database: str | None,
    json_output: bool,
) -> None:
    """Run a SELECT over the tables of ROOT, without Spark, also while a pipeline writes them.

    A table silver/frames is silver_frames in SQL. Without QUERY: the tables and their columns.
    """
    from ..pipeline import create_statements, list_tables
    from ..pipeline import query as run_query

    root = _root(location)
    if create is not None:
        if query is not None:
            raise click.UsageError("--create prints statements and takes no query: leave one of them out")
        for statement in create_statements(root, using=create, database=database):
            click.echo(statement)
        return
    if database is not None:
        raise click.UsageError("--database belongs to --create")
    if query is None:
        tables = list_tables(root)
        if json_output:
            entries = [
                {"table": entry.table, "name": entry.name, "uri": entry.uri, "columns": list(entry.columns)}
                for entry in tables
            ]
            click.echo(json.dumps(entries, indent=2))
            return
        overview = columns("in SQL", "columns", last_wraps=True)
        for entry in tables:
            overview.add_row(entry.name, ", ".join(entry.columns))
        console().print(overview)
        return
    if json_output:
        _print_json(run_query(root, query))
    else:
        _print_rows(run_query(root, query), limit)


def _print_json(batches: Iterator[pa.RecordBatch]) -> None:
    """Rows as a JSON array, written batch by batch."""
    separator = "["
    for batch in batches:
        for row in batch.to_pylist():
            click.echo(f"{separator}{json.dumps(row, default=_plain_value)}", nl=False)
            separator = ",\n "
    click.echo("[]" if separator == "[" else "]")


def _plain_value(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, date | datetime) else str(value)


def _print_rows(batches: Iterator[pa.RecordBatch], limit: int) -> None:
    table: Table | None = None
    shown, is_cut = 0, False
    for batch in batches:
        if table is None:
            table = columns(*batch.schema.names)
        for row in batch.slice(0, limit - shown).to_pylist():
            table.add_row(*(_cell(value) for value in row.values()))
        is_cut = is_cut or len(batch) > limit - shown
        shown += min(len(batch), limit - shown)
        if is_cut:
            break
    if table is not None:
        console().print(table)
    if not shown:
        click.echo("no rows", err=True)
    if is_cut:
        click.echo(f"only the first {shown:,} rows; --limit shows more, --json all", err=True)


def _cell(value: Any) -> str:
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    return "" if value is None else safe_text(str(value))


@pipeline.command(epilog=_RERUN_EPILOG)
@_definition
@click.option("--from", "start", type=Time(), help="Only frames received from this time (UTC).")
@click.option("--to", "end", type=Time(), help="Only frames received before this time (UTC).")
@click.option(
    "--stage", type=click.Choice(["gold"]), default="gold", show_default=True, help="What to compute again."
)
@click.option(
    "--function", "functions", multiple=True, help="Only this function, or statistics. May be repeated."
)
@click.option("--master", help="Where Spark runs: local[*] without it, local[4], spark://host:7077.")
@click.option("--remote", help="A Spark Connect server instead: sc://host:15002.")
@_json_output
def rerun(
    definition: Path,
    start: int | None,
    end: int | None,
    stage: str,
    functions: tuple[str, ...],
    master: str | None,
    remote: str | None,
    json_output: bool,
) -> None:
    """Compute rows of gold again from silver, after a function was changed or added; also beside a live run.

    One transaction replaces the rows of a table: a query sees the old ones or the new ones. Start the live
    run with the changed definition first, so that later frames have the new rows too.
    """
    if master is not None and remote is not None:
        raise click.UsageError("--master and --remote both name a Spark: leave one out")
    from ..pipeline import RerunRange
    from ..pipeline import rerun as rerun_pipeline

    settings, callables = _read(definition)
    whole = RerunRange()
    results = rerun_pipeline(
        settings,
        RerunRange(whole.from_ns if start is None else start, whole.to_ns if end is None else end),
        functions=functions,
        master=master,
        remote=remote,
        place=str(definition.absolute().parent),
        callables=callables,
    )
    if json_output:
        click.echo(json.dumps({name: result.to_json() for name, result in results.items()}, indent=2))
        return
    table = columns("table", "rows before", "rows now", right=("rows before", "rows now"))
    for name, result in sorted(results.items()):
        table.add_row(name, f"{result.removed:,}", f"{result.written:,}")
    console().print(table)


@pipeline.command(epilog=_COMPACT_EPILOG)
@_location
@_json_output
def compact(location: str, json_output: bool) -> None:
    """Merge small files of all tables, without Spark, also while a pipeline runs.

    A running pipeline does it by itself (compact = "always"). Rows do not change, and every query reads one
    version of a table. Merged files are kept for the time of the setting retain, for running queries.
    """
    from ..pipeline import compact as merge_files

    results = merge_files(_root(location))
    if json_output:
        click.echo(json.dumps({name: result.to_json() for name, result in results.items()}, indent=2))
        return
    table = columns("table", "files", "now", right=("files", "now"))
    for name, result in sorted(results.items()):
        table.add_row(name, f"{result.before:,}", f"{result.after:,}")
    if results:
        console().print(table)
    else:
        click.echo("there are no small files to merge", err=True)


@pipeline.command(epilog=_MIGRATE_EPILOG)
@click.argument("old", metavar="OLD", type=click.Path(exists=True, file_okay=False))
@click.argument("new", metavar="NEW")
@_json_output
def migrate(old: str, new: str, json_output: bool) -> None:
    """Write the tables of an earlier version in OLD to the new root NEW, as Delta tables.

    OLD is only read: stop its pipeline first, and remove it when you have seen the new tables. Set out = NEW
    in the definition; the next run continues where the last one ended.
    """
    from ..pipeline import migrate as migrate_tables

    counts = migrate_tables(old, new)
    if json_output:
        click.echo(json.dumps(counts, indent=2))
        return
    table = columns("table", "rows", right=("rows",))
    for name, rows in sorted(counts.items()):
        table.add_row(name, f"{rows:,}")
    console().print(table)


@pipeline.command(epilog=_REPORT_EPILOG)
@click.argument("location", metavar="ROOT|DEFINITION")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="The page.  [ROOT.html]")
@click.option("--open", "show", is_flag=True, help="Show the page in the browser.")
@click.option(
    "--samples",
    default=4,
    show_default=True,
    type=click.IntRange(0, 64),
    help="Frames of each stream to show.",
)
@click.option(
    "--json", "json_output", is_flag=True, help="The figures as JSON on stdout; no page unless --out."
)
def report(location: str, out: Path | None, show: bool, samples: int, json_output: bool) -> None:
    """Write an HTML page on the tables of ROOT: rates, gaps, latency, alignment, frames.

    The page needs no network and no other file. Exit status 1 if the tables do not add up.
    """
    from ..pipeline import report as reports

    if json_output and show and out is None:
        raise click.UsageError("--open needs a page: name its file with --out")
    root = _root(location)
    target = out
    if target is None and not json_output:
        name = root.rstrip("/").rpartition("/")[2]
        directory = Path() if "://" in root else Path(root).absolute().parent
        target = directory.absolute() / f"{name or 'tables'}.html"
    if target is None:
        # Sample frames are for the page only.
        result = reports.collect(root, samples=0)
    else:
        result = reports.write(root, target, samples=samples)
    if json_output:
        click.echo(json.dumps(result.to_json(), indent=2))
    screen = console(err=True)
    for fault in result.faults:
        screen.print(Text(f"✗ {fault}", style=BAD), soft_wrap=True)
    for reason in result.unread_recordings:
        screen.print(Text(f"! not compared with its ledger: {reason}", style=WARN), soft_wrap=True)
    if target is not None:
        summary = f"{result.total('frames'):,} frames, {format_bytes(result.total('bytes'))}: {target}"
        line = Text(summary) if result.faults else Text(f"✓ {summary}", style=GOOD)
        screen.print(line, soft_wrap=True)
    if show and target is not None and not webbrowser.open(target.absolute().as_uri()):
        screen.print(Text("hint: there is no browser here; open the file yourself"), soft_wrap=True)
    if result.faults:
        raise SystemExit(1)


def _root(location: str) -> str:
    """The root of tables: `location` itself, a directory or a URI, or that of a definition."""
    if "://" in location or Path(location).is_dir():
        return location
    if not Path(location).is_file():
        raise click.UsageError(f"{location} is neither a root of tables nor a definition")
    settings, _ = _read(Path(location))
    return settings.out


def _pipeline_name(location: str) -> str | None:
    """The name of a definition's pipeline."""
    if "://" in location or not Path(location).is_file():
        return None
    return _read(Path(location))[0].name


def _read(definition: Path) -> tuple[PipelineSettings, Callables]:
    from ..pipeline.builder import read_definition

    return read_definition(definition)


def _summary(settings: PipelineSettings) -> str:
    parts = [f"{len(settings.recordings)} recordings into {settings.out}"]
    for name in ("rules", "alignments", "functions"):
        if count := len(getattr(settings, name)):
            parts.append(f"{count} {name}")
    return ", ".join(parts)
