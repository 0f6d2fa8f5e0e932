"""Makes files part of tables, once for each micro-batch of a stage, whatever is killed when. Runs beside
Spark's driver.

1. Tasks have written files into the staging directory, and synced them. Nobody sees those.
2. `intent.json` says which files go where, and what the commit will be. From here on the batch is decided.
3. Files are renamed into their tables: a plain listing of a table finds them, under a name that the batch
gives.
4. `<batch>.json` is the commit; the intent goes.

A kill before 2 leaves garbage that the next start removes, and the batch is made again. A kill after 2 leaves
an intent: the next run does 3 and 4 again, which changes nothing for what was done. So a file is in its
table once, under one name, and a reader needs none of this to read a table.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ..durable import replace_file, sync_directory, write_errors
from ..errors import PipelineError
from .layout import Layout
from .schemas import Table
from .table_files import StagedFile

_KEPT: Final = 16
"""Commits of a stage that are kept; later stages look at the last one, people at the last few."""


@dataclass(slots=True)
class Commit:
    """What a micro-batch of a stage brought. `state` is what the stage remembers, `totals` are since the
    beginning."""

    stage: str
    batch: int
    files: list[dict[str, Any]] = field(default_factory=list)
    state: dict[str, Any] = field(default_factory=dict)
    totals: dict[str, Any] = field(default_factory=dict)
    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0
    at_ns: int = 0

    def of(self, table: str) -> list[dict[str, Any]]:
        """Its files of a table."""
        return [one for one in self.files if one["table"] == table]

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


class StageLog:
    """The commits of one stage. One process at a time, which the pipeline's lock sees to."""

    def __init__(
        self, layout: Layout, stage: str, *, tables: Iterable[Table] = (), delta: str | None = None
    ) -> None:
        self._layout = layout
        self._stage = stage
        self._tables = {table.name: table for table in tables}
        self._delta = delta
        """The pipeline's id, where tables are Delta tables."""

    def last(self) -> Commit | None:
        """The newest commit, after finishing one that was decided."""
        self.recover()
        return last_commit(self._layout, self._stage)

    def find(self, batch: int) -> Commit | None:
        self.recover()
        return _load(self._layout.commit(self._stage, batch))

    def recover(self) -> None:
        """Finishes what an earlier process had decided."""
        path = self._layout.intent(self._stage)
        try:
            intent = json.loads(path.read_bytes())
        except FileNotFoundError:
            return
        self._carry_out(intent)

    def commit(
        self,
        batch: int,
        written: Sequence[StagedFile],
        *,
        state: dict[str, Any] | None = None,
        totals: dict[str, Any] | None = None,
        carried: Sequence[StagedFile] = (),
        removes: Sequence[str] = (),
        rows: int = 0,
        payload_bytes: int = 0,
        seconds: float = 0.0,
    ) -> Commit:
        """`carried`: files of the stage's own, which the next batch reads; `removes`: names below the root
        that go with this commit."""
        moves: list[list[str]] = []
        files = []
        for number, one in enumerate(written):
            parts = [f"{name}={value}" for name, value in one.partition.items()]
            name = "/".join([one.table, *parts, f"b{batch:08}-{number:04}.parquet"])
            moves.append([one.staged, name])
            files.append(
                {
                    "table": one.table,
                    "path": name,
                    "partition": one.partition,
                    "rows": one.rows,
                    "bytes": one.bytes,
                    **one.facts,
                }
            )
        kept: dict[str, list[str]] = {}
        for number, one in enumerate(carried):
            name = f"_state/{self._stage}/{one.table.replace('/', '-')}-b{batch:08}-{number:04}.parquet"
            moves.append([one.staged, name])
            kept.setdefault(one.table, []).append(name)
        made = Commit(
            self._stage,
            batch,
            files,
            {**(state or {}), "carried": kept},
            totals or {},
            rows,
            payload_bytes,
            seconds,
            time.time_ns(),
        )
        intent = {"moves": moves, "removes": list(removes), "commit": made.to_json()}
        path = self._layout.intent(self._stage)
        with write_errors(path):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(path, json.dumps(intent).encode())
        self._carry_out(intent)
        return made

    def _carry_out(self, intent: dict[str, Any]) -> None:
        root = self._layout.root
        made = intent["commit"]
        with write_errors(root):
            touched: dict[Path, None] = {}
            for staged, name in intent["moves"]:
                self._move(Path(staged), root / name, touched)
            for directory in touched:
                sync_directory(directory)
            if self._delta is not None:
                from .delta import add_files

                for name in sorted({one["table"] for one in made["files"]} & self._tables.keys()):
                    table = self._tables[name]
                    add_files(
                        root,
                        table,
                        [f for f in made["files"] if f["table"] == name],
                        self._delta,
                        made["batch"],
                    )
            for name in intent["removes"]:
                (root / name).unlink(missing_ok=True)
            replace_file(self._layout.commit(self._stage, made["batch"]), json.dumps(made).encode())
            self._layout.intent(self._stage).unlink()
            self._forget()

    def _move(self, staged: Path, final: Path, touched: dict[Path, None]) -> None:
        if final.parent not in touched:
            for directory in _made(final.parent, self._layout.root):
                touched[directory] = None
            touched[final.parent] = None
        try:
            os.rename(staged, final)
        except FileNotFoundError:
            if not final.exists():
                raise PipelineError(
                    f"{staged} is gone before it got into its table: something else removes files below "
                    f"{self._layout.root}; begin another root"
                ) from None

    def _forget(self) -> None:
        for path in _commits(self._layout, self._stage)[:-_KEPT]:
            path.unlink(missing_ok=True)


def last_commit(layout: Layout, stage: str) -> Commit | None:
    """The newest commit, as it is: for those who only look."""
    for path in reversed(_commits(layout, stage)):
        if (found := _load(path)) is not None:
            return found
    return None


def _commits(layout: Layout, stage: str) -> list[Path]:
    directory = layout.commits(stage)
    return sorted(directory.glob("[0-9]*.json")) if directory.is_dir() else []


def _load(path: Path) -> Commit | None:
    try:
        return Commit(**json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None


def _made(directory: Path, root: Path) -> list[Path]:
    """Makes a directory; gives those whose names changed by it."""
    missing = []
    while directory != root and not directory.is_dir():
        missing.append(directory)
        directory = directory.parent
    for one in reversed(missing):
        one.mkdir(mode=0o700, exist_ok=True)
    return [one.parent for one in missing]


def clear_staging(layout: Layout) -> None:
    """Removes what no commit will ever name. Only while nothing runs, and after every log has recovered."""
    shutil.rmtree(layout.staging, ignore_errors=True)
