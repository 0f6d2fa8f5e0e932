"""From recordings to tables that people query: bronze, silver and gold, exactly once, on any Spark.

`Pipeline` is a definition in Python; `load` reads one in TOML; `run` takes it to the tables; `status` says
how far it is; `compact` merges small files.
"""

from .builder import Pipeline
from .definition import PipelineSettings, load
from .run import compact, run
from .status import Status, status

__all__ = ["Pipeline", "PipelineSettings", "Status", "compact", "load", "run", "status"]
