"""The files below the root of a pipeline, the names of its tables, and its marker.

```
OUT/
  pipeline.json                       id, versions of the tables, the definition that was last run
  bronze/{frames,gaps,metadata}/      as recorded
  silver/{frames,rejects,gaps}/       validated
  silver/{aligned,unaligned}/<name>/  sets of frames of several streams, and frames without a set
  gold/{quality,quality_open,statistics}/, gold/<function>/
  derived/<function>/                 a recording, for functions that return arrays
  _decisions/<number>.json            what a micro-batch adds to which table; only the last ones are kept
  _state/<number>-<token>.arrow       pending frames and events that a decision carries to the next one
  _writers/<id>.json                  processes that write the tables, and when each was last active
  _pipelines/<name>/                  of a pipeline with a name: pipeline.json, _decisions, _state, _writers
```

Every table is a Delta table, partitioned by `date`. Names that begin with `_` are not tables. Several
pipelines may write to the tables of one root: each has its decisions, and its id in the transactions.
"""

from __future__ import annotations

from typing import Final

BRONZE: Final = "bronze"
SILVER: Final = "silver"
GOLD: Final = "gold"
ALIGN: Final = "align"
STAGES: Final = (BRONZE, SILVER, ALIGN, GOLD)

BRONZE_FRAMES: Final = "bronze/frames"
BRONZE_GAPS: Final = "bronze/gaps"
BRONZE_METADATA: Final = "bronze/metadata"
SILVER_FRAMES: Final = "silver/frames"
SILVER_REJECTS: Final = "silver/rejects"
SILVER_GAPS: Final = "silver/gaps"
GOLD_QUALITY: Final = "gold/quality"
GOLD_QUALITY_OPEN: Final = "gold/quality_open"
GOLD_STATISTICS: Final = "gold/statistics"

RESERVED_NAMES: Final = frozenset({"quality", "quality_open", "statistics"})
"""Names of the pipeline's own gold tables, which functions cannot have."""


def aligned(name: str) -> str:
    """The table of an alignment's sets."""
    return f"silver/aligned/{name}"


def unaligned(name: str) -> str:
    """The table of the frames without a set, with the reasons."""
    return f"silver/unaligned/{name}"


def function(name: str) -> str:
    """The table of a function's results."""
    return f"gold/{name}"


DECISIONS: Final = "_decisions"
STATE: Final = "_state"
WRITERS: Final = "_writers"
MARKER: Final = "pipeline.json"
DERIVED: Final = "derived"
PIPELINES: Final = "_pipelines"


def pipeline_directory(root: str, name: str | None) -> str:
    """Where a pipeline keeps its marker, decisions and state: the root, or a directory of its name."""
    return root if name is None else f"{root.rstrip('/')}/{PIPELINES}/{name}"
