"""Where everything of a pipeline lies, below its root.

```
OUT/
  pipeline.json                            id, versions of the tables, the definition that was last run
  bronze/{frames,gaps,metadata}/           as recorded
  silver/{frames,rejects,gaps}/            validated
  silver/{aligned,unaligned}/<name>/       frames of several streams that belong together
  gold/{quality,statistics}/, gold/<function>/
  derived/<function>/                      a recording, for functions that give tensors
  _checkpoint/                             Spark's: offsets of the one streaming query
  _commits/<stage>/<batch>.json            which files a micro-batch brought; the last few
  _commits/<stage>/intent.json             a commit that was decided, and is not done yet
  _state/<stage>/                          what a stage carries from one micro-batch to the next
  _state/compacted                         the day before which small files have been merged
  _staging/                                what tasks wrote and no commit names yet
```

Names that begin with `_` are no data. A table is a directory of Parquet files (or a Delta table), partitioned
as in Hive: `stream_id=10000/date=2026-03-01/`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

BRONZE: Final = "bronze"
SILVER: Final = "silver"
GOLD: Final = "gold"
STAGES: Final = (BRONZE, SILVER, GOLD)

BRONZE_FRAMES: Final = "bronze/frames"
BRONZE_GAPS: Final = "bronze/gaps"
BRONZE_METADATA: Final = "bronze/metadata"
SILVER_FRAMES: Final = "silver/frames"
SILVER_REJECTS: Final = "silver/rejects"
SILVER_GAPS: Final = "silver/gaps"
GOLD_QUALITY: Final = "gold/quality"
GOLD_STATISTICS: Final = "gold/statistics"

RESERVED_NAMES: Final = frozenset({"quality", "statistics"})
"""Functions cannot be called so: their tables would be another's."""


def aligned(name: str) -> str:
    """The table of an alignment's rows."""
    return f"silver/aligned/{name}"


def unaligned(name: str) -> str:
    """The table of frames that an alignment has no row for, and why."""
    return f"silver/unaligned/{name}"


def function(name: str) -> str:
    """The table of what a function gave."""
    return f"gold/{name}"


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths below a pipeline's root."""

    root: Path

    def table(self, name: str) -> Path:
        """The directory of a table: `layout.table("silver/frames")`."""
        return self.root / name

    def derived(self, name: str) -> Path:
        """The recording that a function's tensors are in."""
        return self.root / "derived" / name

    @property
    def marker(self) -> Path:
        return self.root / "pipeline.json"

    @property
    def checkpoint(self) -> Path:
        return self.root / "_checkpoint"

    @property
    def staging(self) -> Path:
        return self.root / "_staging"

    @property
    def lock(self) -> Path:
        return self.root / "_lock"

    def commits(self, stage: str) -> Path:
        return self.root / "_commits" / stage

    def commit(self, stage: str, batch: int) -> Path:
        return self.commits(stage) / f"{batch:012}.json"

    def intent(self, stage: str) -> Path:
        return self.commits(stage) / "intent.json"

    def state(self, stage: str) -> Path:
        return self.root / "_state" / stage

    @property
    def compacted(self) -> Path:
        return self.root / "_state" / "compacted"

    def tables(self) -> list[str]:
        """The tables that have been begun."""
        found = [
            name
            for name in (
                BRONZE_FRAMES,
                BRONZE_GAPS,
                BRONZE_METADATA,
                SILVER_FRAMES,
                SILVER_REJECTS,
                SILVER_GAPS,
            )
            if self.table(name).is_dir()
        ]
        for above in ("silver/aligned", "silver/unaligned", "gold"):
            directory = self.table(above)
            below = sorted(directory.iterdir()) if directory.is_dir() else []
            found += [f"{above}/{one.name}" for one in below if one.is_dir() and one.name[:1] not in "_."]
        return found
