"""`tensorpool pipeline init --declarative DIR`: the same tables as a project of Spark's own."""

from __future__ import annotations

import shlex
from pathlib import Path

import click


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
