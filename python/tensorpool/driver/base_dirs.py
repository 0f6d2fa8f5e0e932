"""The base directories of a driver: one for most streams, one on hugepages, and those of single streams.

Pure, except for `BaseDirs.probe`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..shm.epoch_files import is_hugetlbfs
from .config import DriverSettings
from .plan import StreamPlan


@dataclass(frozen=True, slots=True)
class BaseDirs:
    """Where the regions of each stream are created."""

    default: Path
    hugepages: Path | None = None
    """For streams on hugepages; None: they are created below the default too."""
    on_hugepages: frozenset[Path] = frozenset()
    """Those on hugetlbfs."""
    others: tuple[Path, ...] = ()
    """Those of single streams."""

    @classmethod
    def probe(cls, default: Path, settings: DriverSettings) -> BaseDirs:
        """The base directories of these settings, as they are mounted now."""
        hugepages = settings.hugepages_dir
        configured = dict.fromkeys(
            stream.base_dir for stream in settings.streams if stream.base_dir is not None
        )
        others = tuple(configured)
        known = [default, *others, *([] if hugepages is None else [hugepages])]
        return cls(default, hugepages, frozenset(base for base in known if is_hugetlbfs(base)), others)

    @property
    def all(self) -> tuple[Path, ...]:
        """All base directories, each once."""
        return tuple(dict.fromkeys((self.default, *self.others, *_present(self.hugepages))))

    def of(self, plan: StreamPlan) -> Path:
        """The base directory of a stream."""
        if plan.base_dir is not None:
            return plan.base_dir
        return self.hugepages if plan.hugepages and self.hugepages is not None else self.default

    def has_hugepages(self, plan: StreamPlan) -> bool:
        """Whether the regions of a stream are on hugepages."""
        return self.of(plan) in self.on_hugepages


def _present(base: Path | None) -> Iterable[Path]:
    return () if base is None else (base,)
