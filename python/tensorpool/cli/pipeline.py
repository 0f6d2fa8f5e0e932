"""`tensorpool pipeline`: recordings to tables, on any Spark.

`tensorpool pipeline init --declarative DIR`: the same tables as a project of Spark's own.

`tensorpool pipeline report`: a pipeline's tables as one page.

How a pipeline looks on a screen: its stages while it runs, and its account at the end.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
import webbrowser
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..runtime.process import Signals
from .output import BAD, DIM, GOOD, WARN, columns, console, format_bytes, format_duration, key_values
from .params import CommandGroup

if TYPE_CHECKING:
    from ..pipeline import PipelineSettings, Status


def write_project(directory: Path, recordings: tuple[Path, ...]) -> None:
    """Writes the project and says how to run it."""
    from ..pipeline import declarative, definition

    settings = None
    if recordings:
        named = [str(root.absolute()) for root in recordings]
        settings = definition.parse({"pipeline": {"recordings": named, "out": str(directory / "tables")}})
    declarative.write_project(directory, settings)
    if settings is None:
        click.echo(f"say in {directory / 'pipeline.toml'} where the recordings are, then:", err=True)
    click.echo(f"cd {shlex.quote(str(directory))} && SPARK_CONF_DIR=conf spark-pipelines run", err=True)


_REPORT_EPILOG = """
\b
Examples:
  tensorpool pipeline report TABLES                       writes TABLES.html
  tensorpool pipeline report TABLES --out report.html --open
  tensorpool pipeline report TABLES --json | jq .totals
"""


@click.command(epilog=_REPORT_EPILOG)
@click.argument("root", metavar="ROOT", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="The page.  [ROOT.html]")
@click.option("--open", "show", is_flag=True, help="Show it in the browser.")
@click.option(
    "--samples",
    default=4,
    show_default=True,
    type=click.IntRange(0, 64),
    help="Frames of each stream to show.",
)
@click.option("--json", "as_json", is_flag=True, help="The same figures on stdout; no page unless --out.")
def report(root: Path, out: Path | None, show: bool, samples: int, as_json: bool) -> None:
    """Make one HTML page of the tables in ROOT: rates, gaps, latency, alignment, frames.

    The page needs no network and no other file. Exit status 1 if the tables do not add up.
    """
    from ..pipeline import report as reports

    if as_json and show and out is None:
        raise click.UsageError("--open needs a page: say where with --out")
    target = out if out is not None or as_json else root.absolute().with_name(f"{root.absolute().name}.html")
    if target is None:
        # Pictures are for the page only.
        found = reports.collect(root, samples=0)
    else:
        found = reports.write(root, target, samples=samples)
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=2))
    screen = console(err=True)
    for fault in found.faults:
        screen.print(Text(f"✗ {fault}", style=BAD), soft_wrap=True)
    if target is not None:
        words = f"{found.total('frames'):,} frames, {format_bytes(found.total('bytes'))}: {target}"
        screen.print(
            Text(f"✓ {words}" if not found.faults else words, style="" if found.faults else GOOD),
            soft_wrap=True,
        )
    if show and target is not None and not webbrowser.open(target.absolute().as_uri()):
        screen.print(Text("hint: no browser was found; open the file yourself"), soft_wrap=True)
    if found.faults:
        raise SystemExit(1)


_LINE_S = 10.0


class PipelineProgress:
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
    screen.print(key_values(rows))
    screen.print()
    screen.print(stages_table(found))


def _clock(at_ns: int) -> str:
    return datetime.fromtimestamp(at_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


_EPILOG = """
\b
Examples:
  tensorpool pipeline init --recording /data/recording --out /data/tables
  tensorpool pipeline validate pipeline.toml
  tensorpool pipeline run pipeline.toml --once
  tensorpool pipeline status /data/tables
  tensorpool pipeline compact /data/tables
  tensorpool pipeline report /data/tables --open
"""
_INIT = """
\b
Examples:
  tensorpool pipeline init
  tensorpool pipeline init --recording /data/recording --out /data/tables
  tensorpool pipeline init --declarative project --recording /data/recording
"""
_VALIDATE = """
\b
Examples:
  tensorpool pipeline validate pipeline.toml
  tensorpool pipeline validate pipeline.toml --json
"""
_RUN = """
\b
Examples:
  tensorpool pipeline run pipeline.toml --once
  tensorpool pipeline run pipeline.toml               (until Ctrl-C)
  tensorpool pipeline run pipeline.py --master spark://head:7077
  tensorpool pipeline run pipeline.toml --once --remote sc://head --json
"""
_STATUS = """
\b
Examples:
  tensorpool pipeline status /data/tables
  tensorpool pipeline status pipeline.toml --json | jq .stages.silver.totals
"""

_COMPACT = """
\b
Examples:
  tensorpool pipeline compact /data/tables
  tensorpool pipeline compact pipeline.toml --json
"""

_definition = click.argument(
    "definition", metavar="DEFINITION", type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
_place = click.argument("place", metavar="DIR|DEFINITION", type=click.Path(exists=True, path_type=Path))
_as_json = click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")


@click.group(cls=CommandGroup, epilog=_EPILOG)
def pipeline() -> None:
    """Take recordings to tables: bronze as recorded, silver checked and aligned, gold measured."""


pipeline.add_command(report)


@pipeline.command(epilog=_INIT)
@click.argument("file", metavar="[FILE]", default="pipeline.toml", type=click.Path(path_type=Path))
@click.option(
    "--recording",
    "recordings",
    multiple=True,
    type=click.Path(path_type=Path),
    help="A recording to take; several are one pipeline.",
)
@click.option("--out", default="tables", type=click.Path(path_type=Path), help="Where the tables are to go.")
@click.option(
    "--declarative",
    "project",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write a project for Spark's Declarative Pipelines there instead.",
)
def init(file: Path, recordings: tuple[Path, ...], out: Path, project: Path | None) -> None:
    """Write a definition to begin with. A file that is there is left alone."""
    from ..pipeline.starter import definition

    if project is not None:
        write_project(project, recordings)
        return
    try:
        with file.open("x") as opened:
            opened.write(definition(file.name, recordings, out))
    except FileExistsError:
        raise click.UsageError(f"{file} is there already; name another file") from None
    click.echo(
        f"{file} is written; tensorpool pipeline run {shlex.quote(str(file))} --once runs it", err=True
    )


@pipeline.command(epilog=_VALIDATE)
@_definition
@_as_json
def validate(definition: Path, as_json: bool) -> None:
    """Check a definition, its recordings and its functions, without Spark.

    Exit status 1 with everything that is wrong: the key, its line, and what would do.
    """
    from ..pipeline.function_task import load_function
    from ..recording.layout import check_root

    settings, callables = _read(definition)
    for root in settings.recordings:
        check_root(root)
    for one in settings.functions:
        if one.name not in callables:
            load_function(one.function, str(definition.absolute().parent))
    if as_json:
        from ..pipeline.run import describe

        click.echo(json.dumps({"ok": True, "definition": describe(settings)}, indent=2))
    else:
        click.echo(f"{definition} is good: {_text(settings)}", err=True)


@pipeline.command(epilog=_RUN)
@_definition
@click.option("--once", is_flag=True, help="Take what is there now, through all stages, and end.")
@click.option("--master", help="Where Spark runs: local[*] without it, local[4], spark://host:7077.")
@click.option("--remote", help="A Spark Connect server instead: sc://host:15002.")
@click.option("--quiet", is_flag=True, help="No progress.")
@_as_json
def run(
    definition: Path, once: bool, master: str | None, remote: str | None, quiet: bool, as_json: bool
) -> None:
    """Run a definition, in TOML or in Python, until Ctrl-C or SIGTERM.

    Goes on where an earlier run ended, however it ended. One pipeline at a time works on a directory of
    tables.
    """
    if master is not None and remote is not None:
        raise click.UsageError("--master and --remote both say where Spark is: leave one out")
    from ..pipeline import run as run_pipeline

    settings, callables = _read(definition)
    asked: list[bool] = []
    told: list[bool] = []

    def stop() -> bool:
        if asked and not told:
            told.append(True)
            screen.say("ending when the micro-batch under way is done; Ctrl-C again ends it at once")
        return bool(asked)

    with Signals(stop=lambda: asked.append(True)), PipelineProgress(quiet=quiet) as screen:
        screen.say("starting Spark")
        found = run_pipeline(
            settings,
            master=master,
            remote=remote,
            once=once,
            place=str(definition.absolute().parent),
            callables=callables,
            look=screen.show,
            stop=stop,
        )
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=2))
    else:
        show_status(console(), found)


@pipeline.command(epilog=_STATUS)
@_place
@_as_json
def status(place: Path, as_json: bool) -> None:
    """Print how far a pipeline is: of its directory of tables, or of its definition. Also while it runs."""
    from ..pipeline import status as look

    found = look(_root(place))
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=2))
        return
    show_status(console(), found)


@pipeline.command(epilog=_COMPACT)
@_place
@_as_json
def compact(place: Path, as_json: bool) -> None:
    """Merge small files of all tables, without Spark, while no pipeline runs on them.

    A running one does it by itself when a day is over (compact = "days"). Rows stay what they are, and a
    listing of a table has each of them once at any moment; a query that is under way may not find a file any
    more, and says so.
    """
    from ..pipeline import compact as merge

    found = merge(_root(place))
    if as_json:
        click.echo(json.dumps({name: one.to_json() for name, one in found.items()}, indent=2))
        return
    table = columns("table", "files", "now", right=("files", "now"))
    for name, one in sorted(found.items()):
        table.add_row(name, f"{one.before:,}", f"{one.after:,}")
    if found:
        console().print(table)
    else:
        click.echo("there are no small files to merge", err=True)


def _root(place: Path) -> Path:
    return place if place.is_dir() else _read(place)[0].out


def _read(definition: Path) -> tuple[PipelineSettings, dict[str, Any]]:
    from ..pipeline.builder import read_definition

    return read_definition(definition)


def _text(settings: PipelineSettings) -> str:
    parts = [f"{len(settings.recordings)} recordings into {settings.out}"]
    for name in ("rules", "alignments", "functions"):
        if count := len(getattr(settings, name)):
            parts.append(f"{count} {name}")
    return ", ".join(parts)
