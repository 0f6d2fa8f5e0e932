"""Small files of a partition become few. Runs beside Spark's driver, between two micro-batches.

Tasks write the merged files aside. A directory is made that has these, and the partition's other files under
a second name; then it changes places with the partition's own, at once. So a plain listing of a table has
every row once, whenever it is taken, and a kill leaves the old directory or the new one. The other is garbage
in the staging directory, which the next start removes. Whoever took a listing before, and opens a file after
that was merged, does not find it.

Delta tables are compacted by `deltalake` itself, and keep what they replaced for a day.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..durable import replace_file, sync_directory, write_errors
from ..errors import PipelineError
from .compact_plan import FAN, plan
from .compact_task import merge_files
from .definition import PipelineSettings
from .exchange import can_exchange, swap_directories
from .layout import Layout
from .table_files import StagedFile, day_of
from .tasks import Item, Tasks

_AFTER_NS: Final = 3_600_000_000_000
"""A day is over when frames are so far into the next one."""
_LISTING_S: Final = 0.5
"""Someone may be in the middle of a listing of the old directory: it is emptied a little later."""
_ROUND_BYTES: Final = 4 << 30
"""What is merged at a time, about: until it is in place it is there twice."""
_DATE: Final = "date="
_DELTA_LOG: Final = "_delta_log"
Held = Callable[[], set[str]]
"""Gives the names below the root that have to stay: a stage will ask for them."""


@dataclass(slots=True)
class CompactionResult:
    """What became of a table's files."""

    before: int = 0
    after: int = 0

    def to_json(self) -> dict[str, int]:
        return {"before": self.before, "after": self.after}


@dataclass(slots=True)
class _Group:
    """Files of one partition that a task merges."""

    place: Path
    names: list[str]
    bytes: int


class Compaction:
    """Of one root, whose lock the caller has."""

    def __init__(
        self, settings: PipelineSettings, *, delta: bool, pause: Callable[[float], None] = time.sleep
    ) -> None:
        self._settings = settings
        self._layout = Layout(settings.out)
        self._is_delta = delta
        self._pause = pause
        self._is_able: bool | None = None
        self._through: str | None = None

    def after_batch(
        self, batch: int, touched: Iterable[str], latest_ns: int, held: Held, tasks: Tasks
    ) -> None:
        """What the definition asks for, when a micro-batch is in all tables. `touched` are files that it
        brought."""
        when = self._settings.compact
        if when == "never":
            return
        through, today = self._known(), day_of(latest_ns - _AFTER_NS)
        is_new_day = through is None or through < today
        if self._is_delta:
            if is_new_day:
                self._delta([("date", ">=", through or ""), ("date", "<", today)])
            elif when == "always" and batch % FAN == FAN - 1:
                self._delta([])
        if is_new_day:
            over = [one for one in self._partitions() if _is_between(one, through or "", today)]
            self._merge(over, held, tasks, whole=True)
            self._remember(today)
        own = {self._layout.root / name for name in touched}
        chosen = {one.parent for one in own if when == "always" or "" < _date(one.parent) < today}
        self._merge(sorted(one for one in chosen if not self._is_in_delta(one)), held, tasks, whole=False)

    def everything(self, held: Held, tasks: Tasks) -> dict[str, CompactionResult]:
        """All small files of all tables. Raises PipelineError where the filesystem cannot do it."""
        if self._is_delta:
            found = self._delta([])
        elif self._able():
            found = {}
        else:
            raise PipelineError(
                f"the filesystem of {self._layout.root} cannot exchange two directories at once (a network's "
                'usually cannot), and readers would see rows twice: use format = "delta", or a longer trigger'
            )
        return found | self._merge(self._partitions(), held, tasks, whole=True)

    # --- which

    def _partitions(self) -> list[Path]:
        """Directories that hold files of plain tables."""
        found = []
        for name in self._layout.tables():
            table = self._layout.table(name)
            if not (table / _DELTA_LOG).is_dir():
                found += [Path(at) for at, _, files in os.walk(table) if files]
        return sorted(found)

    def _is_in_delta(self, place: Path) -> bool:
        return self._is_delta and (self._layout.table(self._table_of(place)) / _DELTA_LOG).is_dir()

    def _groups(self, places: Iterable[Path], held: Held, *, whole: bool) -> Iterator[_Group]:
        names_held: set[str] | None = None
        for place in places:
            with os.scandir(place) as entries:
                sizes = {one.name: -1 if one.is_dir() else one.stat().st_size for one in entries}
            if -1 in sizes.values():
                # Somebody else's: only files can have a second name.
                continue
            own = [
                one for one in sorted(sizes.items()) if one[0].endswith(".parquet") and one[0][0] not in "_."
            ]
            if not plan(own, self._settings.target_file_bytes, whole=whole):
                continue
            names_held = held() if names_held is None else names_held
            above = place.relative_to(self._layout.root)
            free = [one for one in own if str(above / one[0]) not in names_held]
            for names in plan(free, self._settings.target_file_bytes, whole=whole):
                yield _Group(place, names, sum(sizes[name] for name in names))

    # --- plain tables

    def _merge(
        self, places: Iterable[Path], held: Held, tasks: Tasks, *, whole: bool
    ) -> dict[str, CompactionResult]:
        found: dict[str, CompactionResult] = {}
        waiting: list[_Group] = []
        # Groups of one partition follow one another: in a round they share an exchange, in two they have two.
        for one in self._groups(places, held, whole=whole):
            if not self._able():
                break
            if waiting and sum(group.bytes for group in waiting) + one.bytes > _ROUND_BYTES:
                self._round(waiting, tasks, found)
                waiting = []
            waiting.append(one)
        if waiting:
            self._round(waiting, tasks, found)
        return found

    def _round(self, groups: list[_Group], tasks: Tasks, found: dict[str, CompactionResult]) -> None:
        staging = self._layout.staging / f"compact-{secrets.token_hex(4)}"
        with write_errors(staging):
            staging.mkdir(mode=0o700, parents=True)
        results = tasks.run(merge_files, [self._item(one, staging) for one in groups])
        by_place: dict[Path, list[tuple[_Group, list[StagedFile]]]] = {}
        for group, result in zip(groups, results, strict=True):
            made = [StagedFile.from_json(one) for one in result["files"]]
            # Files of many schemas do not become fewer: then they stay.
            if len(made) < len(group.names):
                by_place.setdefault(group.place, []).append((group, made))
        for number, (place, merged) in enumerate(by_place.items()):
            with write_errors(place):
                self._swap(place, merged, staging / f"place-{number}")
            count = found.setdefault(self._table_of(place), CompactionResult())
            count.before += sum(len(group.names) for group, _ in merged)
            count.after += sum(len(made) for _, made in merged)
        if by_place:
            self._pause(_LISTING_S)
        shutil.rmtree(staging, ignore_errors=True)

    def _item(self, group: _Group, staging: Path) -> Item:
        return {
            "table": self._table_of(group.place),
            "files": [str(group.place / name) for name in group.names],
            "staging": str(staging),
            "target_bytes": self._settings.target_file_bytes,
        }

    def _swap(self, place: Path, merged: list[tuple[_Group, list[StagedFile]]], aside: Path) -> None:
        gone = {name for group, _ in merged for name in group.names}
        aside.mkdir(mode=0o700)
        for name in os.listdir(place):
            if name not in gone:
                os.link(place / name, aside / name)
        for group, made in merged:
            # By the first of them, so that names go on to be in the order of time; no file has ever had it.
            stem = group.names[0].partition(".")[0].partition("-c")[0]
            token = secrets.token_hex(4)
            for number, one in enumerate(made):
                os.rename(one.staged, aside / f"{stem}-c{token}-{number:04}.parquet")
        known = place.stat()
        aside.chmod(known.st_mode & 0o7777)
        with contextlib.suppress(PermissionError):
            os.chown(aside, known.st_uid, known.st_gid)
        sync_directory(aside)
        swap_directories(aside, place)
        sync_directory(place.parent)

    def _table_of(self, place: Path) -> str:
        parts = place.relative_to(self._layout.root).parts
        return "/".join(part for part in parts if "=" not in part)

    # --- Delta tables

    def _delta(self, dates: list[tuple[str, str, str]]) -> dict[str, CompactionResult]:
        from .delta import compact

        found: dict[str, CompactionResult] = {}
        for name in self._layout.tables():
            table = self._layout.table(name)
            if (table / _DELTA_LOG).is_dir():
                before, after = compact(table, self._settings.target_file_bytes, dates)
                if before:
                    found[name] = CompactionResult(before, after)
        return found

    # --- what is remembered

    def _able(self) -> bool:
        if self._is_able is None:
            with write_errors(self._layout.staging):
                self._layout.staging.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._is_able = can_exchange(self._layout.staging)
        return self._is_able

    def _known(self) -> str | None:
        """Days before this one have been compacted."""
        if self._through is None:
            try:
                self._through = self._layout.compacted.read_text().strip() or None
            except FileNotFoundError:
                return None
        return self._through

    def _remember(self, today: str) -> None:
        path = self._layout.compacted
        with write_errors(path):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(path, f"{today}\n".encode())
        self._through = today


def _date(place: Path) -> str:
    return place.name.removeprefix(_DATE) if place.name.startswith(_DATE) else ""


def _is_between(place: Path, first: str, today: str) -> bool:
    """Tables without days are looked at once a day."""
    date = _date(place)
    return not date or first <= date < today
