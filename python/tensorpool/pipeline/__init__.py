"""Pipelines from recordings to bronze, silver and gold tables, exactly once, on any Spark.

`Pipeline` is a definition in Python, and `load` reads a definition in TOML. `run` writes the tables, `status`
returns the progress, `query` runs SQL over the tables, `rerun` computes rows of gold again, `compact` merges
small files, and `migrate` writes tables of an earlier version in the present form.
"""

from .builder import Pipeline
from .catalog import create_statements, list_tables, query
from .definition import PipelineSettings, load
from .migrate import migrate
from .rerun import RerunRange, RerunResult, rerun
from .run import compact, run
from .status import Status, status

__all__ = [
    "Pipeline",
    "PipelineSettings",
    "RerunRange",
    "RerunResult",
    "Status",
    "compact",
    "create_statements",
    "list_tables",
    "load",
    "migrate",
    "query",
    "rerun",
    "run",
    "status",
]
