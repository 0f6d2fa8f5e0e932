"""One micro-batch through all stages: bronze, silver, alignments, gold. Runs beside Spark's driver.

Each stage commits for itself. When a batch comes again, after a kill, stages that had it leave it at that;
the first that had not goes on. A stage reads what the one before has committed, and nothing else, so it finds
the same rows again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import align_task, bronze, functions, gold, layout, schemas, silver
from .columns import parse_columns
from .commit import Commit, StageLog, clear_staging
from .compaction import Compaction, CompactionResult
from .definition import PipelineSettings
from .functions import Callables
from .latency import AnchorReader
from .layout import Layout
from .schemas import Table
from .table_files import StagedFile
from .tasks import Tasks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ALIGN = "align"
STAGES = (layout.BRONZE, layout.SILVER, ALIGN, layout.GOLD)
WriteRows = Callable[[str], list[StagedFile]]
"""Writes the rows of the micro-batch below a staging directory."""


class Engine:
    """Works on one root. Its lock is the caller's to hold."""

    def __init__(
        self,
        settings: PipelineSettings,
        *,
        pipeline_id: str,
        place: str | None = None,
        callables: Callables | None = None,
    ) -> None:
        self._settings = settings
        self._layout = Layout(settings.out)
        self._id = pipeline_id
        self._place = place
        self._callables = dict(callables or {})
        delta = pipeline_id if settings.format == "delta" else None
        self._logs = {
            stage: StageLog(self._layout, stage, tables=self._tables(), delta=delta) for stage in STAGES
        }
        self._compaction = Compaction(settings, delta=delta is not None)
        self._anchors = {str(root): AnchorReader(Path(root)) for root in settings.recordings}

    def _tables(self) -> list[Table]:
        """Those that only ever grow, and may be Delta tables."""
        payload = self._settings.payload
        found = [
            schemas.bronze_frames(payload),
            schemas.bronze_gaps(),
            schemas.bronze_metadata(),
            schemas.silver_frames(payload),
            schemas.silver_rejects(payload),
            schemas.silver_gaps(),
            schemas.statistics(),
        ]
        for one in self._settings.alignments:
            found += [schemas.aligned(one.name), schemas.unaligned(one.name)]
        for function in self._settings.functions:
            if function.columns is not None:
                found.append(schemas.function(function.name, parse_columns(function.columns)))
        return found

    def recover(self) -> None:
        """Finishes what an earlier process had decided, and removes what it had not. Before anything runs."""
        for log in self._logs.values():
            log.recover()
        clear_staging(self._layout)

    def last(self, stage: str) -> Commit | None:
        return self._logs[stage].last()

    # --- a micro-batch

    def take(self, df: DataFrame, batch: int, tasks: Tasks) -> None:
        """The function of Spark's `foreachBatch`."""
        self.run(lambda staging: bronze.write_rows(df, self._settings, staging), batch, tasks)

    def run(self, write: WriteRows, batch: int, tasks: Tasks) -> None:
        if self._logs[layout.GOLD].find(batch) is not None:
            # All stages have it; its files may have been merged since.
            return
        made = self._bronze(write, batch)
        cleaned = self._silver(made, batch, tasks)
        aligned = self._align(tasks, through=batch)
        measured = self._gold(made, cleaned, batch, tasks)
        self._compact([made, cleaned, *([] if aligned is None else [aligned]), measured], tasks)

    def close(self, tasks: Tasks) -> None:
        """Decides what an alignment still waits for: the end of what is to be read was reached."""
        self._align(tasks, through=None)

    def compact(self, tasks: Tasks) -> dict[str, CompactionResult]:
        """Merges all small files of all tables."""
        return self._compaction.everything(self._held, tasks)

    def _compact(self, brought: list[Commit], tasks: Tasks) -> None:
        """Every stage has the batch: nobody will ask for its files by name again."""
        touched = [one["path"] for commit in brought for one in commit.files]
        latest = max(brought[1].state.get("last", {}).values(), default=None)
        if latest is not None:
            self._compaction.after_batch(brought[0].batch, touched, latest, self._held, tasks)

    def _held(self) -> set[str]:
        """Files that a stage knows by their names: rows of open intervals, which the next batch replaces, and
        what a stage has brought that a later one has not taken."""
        gold = self._logs[layout.GOLD].last()
        found = set() if gold is None else set(gold.state.get("open", []))
        for stage in (layout.BRONZE, layout.SILVER):
            last = self._logs[stage].last()
            if last is not None and (gold is None or last.batch > gold.batch):
                found |= {one["path"] for one in last.files}
        return found

    def _bronze(self, write: WriteRows, batch: int) -> Commit:
        log = self._logs[layout.BRONZE]
        if (found := log.find(batch)) is not None:
            return found
        before, begun = log.last(), time.monotonic()
        state = {} if before is None else before.state
        with self._staging(layout.BRONZE, batch) as staging:
            written = write(staging)
            notes, places = bronze.write_metadata(self._settings, state.get("places", {}), staging)
            frames = [one for one in written if one.table == layout.BRONZE_FRAMES]
            rows = sum(one.rows for one in frames)
            size = sum(one.facts.get("payload_bytes", 0) for one in frames)
            totals = _summed(before, {"frames": rows, "bytes": size, "files": len(written)})
            return log.commit(
                batch,
                [*written, *notes],
                state={"places": places},
                totals=totals,
                rows=rows,
                payload_bytes=size,
                seconds=time.monotonic() - begun,
            )

    def _silver(self, made: Commit, batch: int, tasks: Tasks) -> Commit:
        log = self._logs[layout.SILVER]
        if (found := log.find(batch)) is not None:
            return found
        before, begun = log.last(), time.monotonic()
        state = {} if before is None else before.state
        with self._staging(layout.SILVER, batch) as staging:
            written, kept, counts = silver.step(
                self._settings, self._layout.root, made, state, self._anchors, tasks, staging
            )
            totals = _summed(
                before,
                {
                    "frames": counts["rows"],
                    "bytes": counts["bytes"],
                    "missing": counts["missing"],
                    "rejects": counts["rejects"],
                },
            )
            return log.commit(
                batch,
                written,
                state=kept,
                totals=totals,
                rows=counts["rows"],
                payload_bytes=counts["bytes"],
                seconds=time.monotonic() - begun,
            )

    def _align(self, tasks: Tasks, *, through: int | None) -> Commit | None:
        """Alignments go by steps of their own: a micro-batch each, and one at the end that decides the
        rest. None where there was nothing to do."""
        if not self._settings.alignments:
            return None
        log, begun = self._logs[ALIGN], time.monotonic()
        before = log.last()
        state = {} if before is None else before.state
        done = state.get("through", -1)
        if through is not None and done >= through:
            return None
        pending = [one.get("pending", 0) for one in state.get("alignments", {}).values()]
        if through is None and not any(pending):
            return None
        taken = None if through is None else self._logs[layout.SILVER].find(through)
        files = [] if taken is None else taken.files
        number = 0 if before is None else before.batch + 1
        with self._staging(ALIGN, number) as staging:
            written, carried, remembered, counts = align_task.step(
                self._settings, self._layout.root, files, state, tasks, staging, closing=through is None
            )
            old = [name for names in state.get("carried", {}).values() for name in names]
            return log.commit(
                number,
                written,
                carried=carried,
                removes=old,
                totals=_summed(before, counts),
                state={"through": done if through is None else through, "alignments": remembered},
                rows=sum(one.rows for one in written),
                seconds=time.monotonic() - begun,
            )

    def _gold(self, made: Commit, cleaned: Commit, batch: int, tasks: Tasks) -> Commit:
        log, begun = self._logs[layout.GOLD], time.monotonic()
        before = log.last()
        state = {} if before is None else before.state
        settings, root = self._settings, self._layout.root
        kept: dict[str, Any] = {}
        written: list[StagedFile] = []
        carried: list[StagedFile] = []
        removes: list[str] = []
        counts: dict[str, Any] = {}
        with self._staging(layout.GOLD, batch) as staging:
            provisional: list[StagedFile] = []
            if settings.quality.enabled:
                links = made.of(layout.BRONZE_METADATA)
                closed, provisional, carried, kept = gold.quality_step(
                    settings, root, cleaned, links, state, tasks, staging
                )
                written += closed
                removes += [*state.get("open", []), *_names(state)]
            if settings.statistics.enabled:
                written += functions.statistics_step(settings, root, cleaned, tasks, staging)
            kept["functions"] = {}
            for one in settings.functions:
                files, kept["functions"][one.name], rows = functions.function_step(
                    one,
                    settings,
                    self._layout,
                    cleaned,
                    state.get("functions", {}).get(one.name, {}),
                    tasks,
                    staging,
                    key=f"{self._id}-{one.name.replace('_', '-')}",
                    place=self._place,
                    function=self._callables.get(one.name),
                )
                written += files
                counts[one.name] = rows
            # Last, so that their names are known: the next commit replaces them.
            begin = len(written)
            kept["open"] = [
                "/".join(
                    [
                        one.table,
                        *(f"{n}={v}" for n, v in one.partition.items()),
                        f"b{batch:08}-{at:04}.parquet",
                    ]
                )
                for at, one in enumerate(provisional, begin)
            ]
            return log.commit(
                batch,
                [*written, *provisional],
                carried=carried,
                removes=removes,
                state=kept,
                totals=_summed(before, {"functions": counts}),
                rows=sum(one.rows for one in written),
                payload_bytes=cleaned.bytes,
                seconds=time.monotonic() - begun,
            )

    @contextmanager
    def _staging(self, stage: str, batch: int) -> Iterator[str]:
        """A directory of this attempt's own: tasks of an earlier one may still be writing into theirs."""
        import secrets
        import shutil

        directory = self._layout.staging / f"{stage}-{batch}-{secrets.token_hex(4)}"
        directory.mkdir(mode=0o700, parents=True)
        yield str(directory)
        # Not after an error: Spark may be about to try again, and the next start removes it.
        shutil.rmtree(directory, ignore_errors=True)


def _names(state: dict[str, Any]) -> list[str]:
    return [name for names in state.get("carried", {}).values() for name in names]


def _summed(before: Commit | None, more: dict[str, Any]) -> dict[str, Any]:
    """Totals since the beginning; counts by reason are added up by reason."""
    found = dict({} if before is None else before.totals)
    for name, value in more.items():
        if isinstance(value, dict):
            found[name] = dict(Counter(found.get(name, {})) + Counter(value))
        else:
            found[name] = found.get(name, 0) + value
    return found
