"""The same tables by Spark's Declarative Pipelines: `write_project(directory, settings)` makes a project that
`spark-pipelines run` runs.

Bronze grows; everything behind it is made anew in each run. For payloads and days beyond counting the engine,
`tensorpool pipeline run`, does each frame once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any, Final

from ...errors import ConfigError
from ...runtime.config.toml import literal
from ..definition import PipelineSettings
from ..marker import as_tables

__all__ = ["table_name", "write_project"]

_TRANSFORMATIONS: Final = ("bronze", "silver", "gold")


def table_name(*parts: str) -> str:
    """A table's name in a catalog: `silver/aligned/left-right` is `silver_aligned_left_right`."""
    return "_".join(parts).replace("-", "_")


def write_project(directory: Path, settings: PipelineSettings | None = None) -> list[Path]:
    """Writes the files of a project; without settings, with a definition to fill in. Nothing is replaced.

    Run it there: `SPARK_CONF_DIR=conf spark-pipelines run`.
    """
    project = directory.absolute()
    if project.exists() and any(project.iterdir()):
        raise ConfigError(f"{project} is not empty; give a directory of its own")
    files = {
        "pipeline.toml": _definition(settings, project),
        "spark-pipeline.yml": _spec(project),
        "conf/spark-defaults.conf": _defaults(project),
        **{f"transformations/{name}.py": _text(f"{name}.py.txt") for name in _TRANSFORMATIONS},
    }
    if settings is not None:
        for one in settings.functions:
            if one.columns is None:
                raise ConfigError(
                    f"function {one.name} gives tensors, which a declarative pipeline has no table for: use "
                    "`tensorpool pipeline run`, or give it columns"
                )
    made = []
    for name, text in files.items():
        path = project / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        made.append(path)
    return made


def _text(name: str) -> str:
    return resources.files(__package__).joinpath("project", name).read_text("utf-8")


def _definition(settings: PipelineSettings | None, project: Path) -> str:
    header = "# What the tables are made of. See docs/reference/pipeline.md.\n"
    if settings is None:
        return f'{header}[pipeline]\nrecordings = ["recording"]\nout = "tables"\n'
    # The tables' place is the catalog's warehouse; recordings are found from anywhere.
    recordings = tuple(root.absolute() for root in settings.recordings)
    anchored = dataclasses.replace(settings, recordings=recordings, out=project / "tables")
    return header + "\n".join(_toml("pipeline", as_tables(anchored))) + "\n"


def _toml(name: str, table: dict[str, Any]) -> Iterator[str]:
    """Plain keys first: after the first table below they would belong to that one."""
    below = {key: value for key, value in table.items() if isinstance(value, dict) or _is_tables(value)}
    yield f"[{name}]"
    yield from (f"{key} = {literal(value)}" for key, value in table.items() if key not in below)
    for key, value in below.items():
        for one in value if isinstance(value, list) else [value]:
            head, *rest = _toml(f"{name}.{key}", one)
            yield from ("", f"[{head}]" if isinstance(value, list) else head, *rest)


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(one, dict) for one in value)


def _spec(project: Path) -> str:
    return f"""\
name: {project.name}
storage: {(project / "storage").as_uri()}
libraries:
  - glob:
      include: transformations/**
"""


def _defaults(project: Path) -> str:
    """Where the catalog lies: without one that stays, a second run would not know the tables of the first."""
    return f"""\
# Where tables and their catalog lie. On a cluster with a catalog of its own, leave SPARK_CONF_DIR away.
spark.sql.catalogImplementation                  hive
spark.hadoop.javax.jdo.option.ConnectionURL      jdbc:derby:;databaseName={project}/metastore;create=true
spark.sql.warehouse.dir                          {(project / "tables").as_uri()}
spark.driver.extraJavaOptions                    -Dderby.stream.error.file={project}/derby.log
spark.sql.parquet.outputTimestampType            TIMESTAMP_MICROS
spark.ui.enabled                                 false
"""
