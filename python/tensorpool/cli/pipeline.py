"""`tensorpool pipeline`: recordings to tables, on any Spark."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..runtime.process import Signals
from .groups import Noun
from .pipeline_declarative import write_project
from .pipeline_report import report
from .pipeline_screen import Screen, show_status
from .screen import columns, console

if TYPE_CHECKING:
    from ..pipeline import PipelineSettings

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


@click.group(cls=Noun, epilog=_EPILOG)
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
        click.echo(f"{definition} is good: {_words(settings)}", err=True)


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

    with Signals(stop=lambda: asked.append(True)), Screen(quiet=quiet) as screen:
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
        click.echo(json.dumps(found.as_json(), indent=2))
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
        click.echo(json.dumps(found.as_json(), indent=2))
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
        click.echo(json.dumps({name: one.as_json() for name, one in found.items()}, indent=2))
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


def _words(settings: PipelineSettings) -> str:
    parts = [f"{len(settings.recordings)} recordings into {settings.out}"]
    for name in ("rules", "alignments", "functions"):
        if count := len(getattr(settings, name)):
            parts.append(f"{count} {name}")
    return ", ".join(parts)
