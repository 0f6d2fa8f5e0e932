"""Runs a pipeline: one streaming query over its recordings, whose micro-batches go through all stages."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from .. import _native
from ..errors import LockHeld, MissingPackage, PipelineError
from . import bronze, layout, marker
from .compaction import CompactionResult
from .definition import PipelineSettings, parse
from .engine import Engine
from .functions import Callables
from .layout import Layout
from .session import open_session
from .status import Status, status
from .tasks import LocalTasks, SparkTasks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_POLL_S: Final = 0.2
_STOPPING_S: Final = 30.0
_LOCK_S: Final = 1.0
Look = Callable[[Status, dict[int, int]], None]
"""Sees how far the pipeline is, and how many sequences each stream is behind."""


def run(
    settings: PipelineSettings,
    *,
    spark: SparkSession | None = None,
    master: str | None = None,
    remote: str | None = None,
    once: bool = True,
    place: str | None = None,
    callables: Callables | None = None,
    look: Look | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Status:
    """Takes what the recordings have to the tables, and with `once=False` goes on until `stop` says so.

    Goes on where an earlier run ended, however it ended. A session that is handed over stays open. `place` is
    a directory where functions are looked for; `callables` are functions at hand, by their name in the
    definition. Raises PipelineError, LockHeld where another pipeline works on the root, MissingPackage.
    """
    _check(settings)
    with _held(settings.out):
        made = marker.begin(settings)
        engine = Engine(settings, pipeline_id=made.pipeline_id, place=place, callables=callables)
        engine.recover()
        _check_checkpoint(settings.out, engine)
        session = spark if spark is not None else open_session(master=master, remote=remote)
        try:
            # Who changed their mind while Spark started does not have to wait for a micro-batch.
            with _short_error():
                if not stop():
                    _stream(session, settings, engine, once=once, look=look, stop=stop)
                if once and not stop():
                    engine.close(SparkTasks(session))
            found = status(settings.out)
            # The lock that it sees is our own.
            found.is_running = False
            if look is not None:
                look(found, {})
            return found
        finally:
            if spark is None:
                session.stop()


def compact(root: str | os.PathLike[str]) -> dict[str, CompactionResult]:
    """Merges small files of all tables of a root, without Spark; gives what became of them, by table.

    Raises PipelineError, and LockHeld where a pipeline works on the root.
    """
    place = Path(root)
    found = marker.read(place)
    settings = dataclasses.replace(parse({"pipeline": found.definition}), out=place)
    with _held(place):
        engine = Engine(settings, pipeline_id=found.pipeline_id)
        engine.recover()
        return engine.compact(LocalTasks())


def _check(settings: PipelineSettings) -> None:
    """What would only show later, deep inside a task."""
    from ..recording.layout import check_root

    for one in settings.recordings:
        check_root(Path(one))
    if settings.format == "delta":
        from .delta import require

        require()


@contextmanager
def _held(root: Path) -> Iterator[None]:
    """Nobody else works on the root meanwhile."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    where = Layout(root)
    lock = _lock(where.lock, root)
    try:
        yield
    finally:
        lock.release()


def _lock(path: Path, root: Path) -> _native.FileLock:
    deadline = time.monotonic() + _LOCK_S
    while True:
        try:
            return _native.FileLock(path, f"process {os.getpid()} (tensorpool pipeline)")
        except LockHeld as error:
            # Whoever asks for the status has it for a moment.
            if time.monotonic() >= deadline:
                raise LockHeld(
                    f"another pipeline works on {root}: {error}. One at a time: stop it, or give another out",
                    holder=error.holder,
                ) from None
        time.sleep(0.05)


def _check_checkpoint(root: Path, engine: Engine) -> None:
    """Tables and Spark's checkpoint go together: batch numbers of another checkpoint mean other rows."""
    last = engine.last(layout.BRONZE)
    if last is None:
        return
    metadata = Layout(root).checkpoint / "metadata"
    if not metadata.exists():
        raise PipelineError(
            f"{root} has tables up to batch {last.batch}, and the checkpoint beside them is gone: what comes "
            "would be there twice. Put it back, or begin another root"
        )
    committed = [
        int(path.name) for path in (Layout(root).checkpoint / "offsets").glob("*") if path.name.isdigit()
    ]
    if max(committed, default=-1) < last.batch:
        raise PipelineError(
            f"{root} has tables up to batch {last.batch}, and its checkpoint knows of "
            f"{max(committed, default=-1)}: it is an old copy. Put the right one back, or begin another root"
        )


def _stream(
    spark: SparkSession,
    settings: PipelineSettings,
    engine: Engine,
    *,
    once: bool,
    look: Look | None,
    stop: Callable[[], bool],
) -> None:
    def take(df: DataFrame, batch: int) -> None:
        engine.take(df, batch, SparkTasks(df.sparkSession))

    writer = bronze.source(spark, settings).writeStream.foreachBatch(take)
    writer = writer.option("checkpointLocation", str(Layout(settings.out).checkpoint))
    if once:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{max(settings.trigger_ns // 1_000_000, 1)} milliseconds")
    query = writer.start()
    try:
        _watch(query, settings, look, stop)
    finally:
        query.stop()


def _watch(
    query: StreamingQuery, settings: PipelineSettings, look: Look | None, stop: Callable[[], bool]
) -> None:
    from ..spark import lag

    while not stop():
        # Short waits: a signal is noticed in between. Spark takes fractions, whatever its types say.
        is_over = query.awaitTermination(_POLL_S)  # type: ignore[arg-type]
        if look is not None:
            look(status(settings.out), lag(query))
        if is_over:
            return
    _let_finish(query)


def _let_finish(query: StreamingQuery) -> None:
    """A micro-batch in the middle of its way is given time; if it takes longer, the next run does it
    again."""
    deadline = time.monotonic() + _STOPPING_S
    while time.monotonic() < deadline and query.isActive and query.status.get("isTriggerActive", False):
        time.sleep(_POLL_S)


@contextmanager
def _short_error() -> Iterator[None]:
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        raise _failure(error) from error


def _failure(error: Exception) -> Exception:
    """What a user has to know of what Spark says in a hundred lines."""
    text = str(error)
    for line in reversed(text.splitlines()):
        name, colon, message = line.strip().partition(": ")
        kind = name.rpartition(".")[2]
        if colon and name.startswith("tensorpool.errors."):
            if kind == "MissingPackage":
                return MissingPackage(message)
            return PipelineError(
                f"{message} ({kind}). What the tables have stays; run it again when that is mended"
            )
    last = next((line for line in reversed(text.splitlines()) if line.strip()), text)
    return PipelineError(f"Spark: {last.strip()[:500]}")


def describe(settings: PipelineSettings) -> dict[str, Any]:
    """The definition as JSON can hold it."""
    found: dict[str, Any] = json.loads(json.dumps(marker.as_tables(settings)))
    return found
