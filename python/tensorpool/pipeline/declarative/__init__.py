"""Projects for Spark's Declarative Pipelines, with the same tables as the engine.

`write_project(directory, settings)` writes a project for `spark-pipelines run`. Bronze grows, and each run
computes silver and gold again. For large or long recordings use the engine, `tensorpool pipeline run`, which
processes each frame once.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Final

from ...errors import ConfigError
from ...recording.table_store import is_object_store
from ...runtime.config.toml_text import literal
from ...text import JsonMapping, JsonValue
from ..catalog import table_name
from ..definition import PipelineSettings
from ..marker import as_tables

__all__ = ["table_name", "write_project"]

_TRANSFORMATIONS: Final = ("bronze", "silver", "gold")


def write_project(directory: Path, settings: PipelineSettings | None = None) -> list[Path]:
    """Writes the files of a project and returns their paths. `settings`: None for a definition to fill in.

    Run it in its directory: `SPARK_CONF_DIR=conf spark-pipelines run`. Raises ConfigError if the directory is
    not empty.
    """
    project = directory.absolute()
    if project.exists() and any(project.iterdir()):
        raise ConfigError(f"{project} is not empty; give a new directory")
    files = {
        "pipeline.toml": _definition(settings, project),
        "spark-pipeline.yml": _spec(project),
        "conf/spark-defaults.conf": _defaults(project),
        **{f"transformations/{name}.py": _text(f"{name}.py.txt") for name in _TRANSFORMATIONS},
    }
    if settings is not None:
        for function in settings.functions:
            if function.columns is None:
                raise ConfigError(
                    f"function {function.name} returns arrays, which declarative pipelines have no table "
                    "for: use `tensorpool pipeline run`, or give it columns"
                )
    paths = []
    for name, text in files.items():
        path = project / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        paths.append(path)
    return paths


def _text(name: str) -> str:
    return resources.files(__package__).joinpath("project", name).read_text("utf-8")


def _definition(settings: PipelineSettings | None, project: Path) -> str:
    header = "# The definition of the tables. See docs/reference/pipeline.md.\n"
    if settings is None:
        return f'{header}[pipeline]\nrecordings = ["recording"]\nout = "tables"\n'
    # The tables are in the warehouse of the catalog; absolute paths of recordings are valid everywhere.
    recordings = tuple(
        root if is_object_store(root) else os.path.abspath(root) for root in settings.recordings
    )
    anchored = dataclasses.replace(settings, recordings=recordings, out=str(project / "tables"))
    return header + "\n".join(_toml("pipeline", as_tables(anchored))) + "\n"


def _toml(name: str, table: JsonMapping) -> Iterator[str]:
    """The lines of a TOML table. Plain keys come first: after a nested table they would belong to it."""
    yield f"[{name}]"
    yield from (f"{key} = {literal(value)}" for key, value in table.items() if not _tables_of(value))
    for key, value in table.items():
        for nested in _tables_of(value):
            head, *rest = _toml(f"{name}.{key}", nested)
            yield from ("", head if isinstance(value, Mapping) else f"[{head}]", *rest)


def _tables_of(value: JsonValue) -> list[JsonMapping]:
    """The tables that a value consists of: a table or an array of tables. Empty: it is a plain value."""
    if isinstance(value, Mapping):
        return [value]
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _spec(project: Path) -> str:
    return f"""\
name: {project.name}
storage: {(project / "storage").as_uri()}
libraries:
  - glob:
      include: transformations/**
"""


def _defaults(project: Path) -> str:
    """The settings of a persistent catalog, so that a second run knows the tables of the first."""
    return f"""\
# Paths of the tables and their catalog. On a cluster with its own catalog, do not set SPARK_CONF_DIR.
spark.sql.catalogImplementation                  hive
spark.hadoop.javax.jdo.option.ConnectionURL      jdbc:derby:;databaseName={project}/metastore;create=true
spark.sql.warehouse.dir                          {(project / "tables").as_uri()}
spark.driver.extraJavaOptions                    -Dderby.stream.error.file={project}/derby.log
spark.sql.parquet.outputTimestampType            TIMESTAMP_MICROS
spark.ui.enabled                                 false
"""
