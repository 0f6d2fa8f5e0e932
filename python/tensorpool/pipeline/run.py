"""The run of a pipeline: micro-batches one after the other, the Spark session, and short errors."""

from __future__ import annotations

import dataclasses
import errno
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..durable import DISK_FULL, RESUME_HINT
from ..errors import DiskFull, MissingPackage, PipelineError, StorageFailed, TensorPoolError
from ..recording.table_store import is_object_store, open_store
from ..text import JsonMapping
from . import marker
from .definition import PipelineSettings
from .delta import CompactionResult, require
from .engine import Engine, apply_decisions, tables_of
from .functions import Callables
from .status import Status, status
from .tasks import SparkTasks, Tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POLL_S: Final = 0.2
_STORE_PATIENCE_S: Final = 180.0
"""How long a run repeats a micro-batch whose store does not answer."""
_STORE_PAUSE_S: Final = 2.0
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
# delta-rs has the code of the system in its text alone.
_OF_A_FULL_DISK: Final = re.compile(rf"os error ({'|'.join(map(str, DISK_FULL))})\b")
DEFAULT_MASTER: Final = "local[*]"
_SESSION_SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
}
_LOCAL_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
}
_AGAIN: Final = re.IGNORECASE
_CAUSES: Final = (
    (
        re.compile(
            r"Python worker (?:exited unexpectedly|crashed)[^\n:]*|Python worker failed[^\n:]*", _AGAIN
        ),
        "a Python worker ended in the middle of a task: it ran out of memory, was killed, or a library that "
        "a function uses crashed; the executor's stderr says more",
    ),
    (
        re.compile(r"ExecutorLostFailure[^\n]*|Lost executor[^\n]*"),
        "an executor was lost: it ran out of memory, was killed, or its host is gone",
    ),
    (
        re.compile(r"[^\n]*(?:TimeoutException|timed out|TIMEOUT|idle timeout)[^\n]*", _AGAIN),
        "a timeout ended the run; the machine or a service that Spark waits for is too slow or gone",
    ),
)
"""What Spark writes somewhere between its stack traces, and what it means."""
_APPENDIX: Final = re.compile(
    r"\n\s*(?:=== Streaming Query ===|JVM stacktrace|Driver stacktrace|Thread State|\+- |== \w+ Logical Plan)"
)
_TRACE: Final = re.compile(r"\s+at |\s*\.\.\. \d+ more|\s*File \"")
Look = Callable[[Status, dict[int, int]], None]
"""Receives the status of the pipeline, and by how many frames each stream is behind."""


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
    """Writes the rows of the recordings to the tables; with `once=False` until `stop` returns True.

    Continues where the last run ended, also after a kill. `spark` is a session that stays open. `place` is a
    directory of modules with functions; `callables` are function objects by their names in the definition.
    `look` receives the status after each micro-batch. Raises PipelineError, also if another process writes
    the same tables at the same time, or MissingPackage.
    """
    _check(settings)
    with store_errors(settings.out):
        pipeline_marker = marker.begin(settings, tables_of(settings))
        engine = Engine(settings, pipeline_id=pipeline_marker.pipeline_id, place=place, callables=callables)
        engine.log.mark_active()
    try:
        with store_errors(settings.out):
            engine.recover()
        with session_of(spark, master=master, remote=remote) as session, short_errors():
            # A user who stops the run while Spark starts does not wait for a micro-batch.
            if not stop():
                _loop(engine, SparkTasks(session), settings, once=once, look=look, stop=stop)
            if once and not stop():
                with store_errors(settings.out):
                    engine.close()
    finally:
        engine.close_sources()
        # Without its store the mark of this process stays for a while.
        with suppress(StorageFailed), store_errors(settings.out):
            engine.log.mark_ended()
    with store_errors(settings.out):
        final_status = status(settings.out, settings.name)
    if look is not None:
        look(final_status, {})
    return final_status


def _loop(
    engine: Engine,
    tasks: Tasks,
    settings: PipelineSettings,
    *,
    once: bool,
    look: Look | None,
    stop: Callable[[], bool],
) -> None:
    if once:
        engine.fix_end()
    answered = time.monotonic()
    while not stop():
        begun = time.monotonic()
        try:
            with store_errors(settings.out):
                engine.log.mark_active()
                has_worked = engine.run_batch(tasks)
                if look is not None:
                    look(status(settings.out, settings.name), engine.behind())
        except StorageFailed:
            # A micro-batch begins with the last decision, so it can be repeated at any time.
            if time.monotonic() - answered > _STORE_PATIENCE_S:
                raise
            time.sleep(_STORE_PAUSE_S)
            continue
        answered = time.monotonic()
        if once:
            if not has_worked:
                return
            continue
        while not stop() and time.monotonic() - begun < settings.trigger_ns / 1e9:
            with suppress(StorageFailed), store_errors(settings.out):
                engine.log.mark_active()
            # Short waits, so that Python handles signals.
            time.sleep(_POLL_S)


def compact(root: str | os.PathLike[str]) -> dict[str, CompactionResult]:
    """Merges small files of all tables of a root, without Spark. Returns the numbers of files by table.

    A running pipeline need not be stopped. Raises PipelineError, StorageFailed, DiskFull.
    """
    url = open_store(root).url
    results: dict[str, CompactionResult] = {}
    with store_errors(url):
        # Of all pipelines: files of a decision that no log names yet would be removed.
        apply_decisions(url)
        for known in marker.read_all(url):
            settings = dataclasses.replace(known.settings, out=url)
            results |= Engine(settings, pipeline_id=known.pipeline_id).compact()
    return results


def _check(settings: PipelineSettings) -> None:
    """Checks recordings and packages now, instead of in a task."""
    require()
    for root in settings.recordings:
        check_recording(root)


def check_recording(root: str) -> None:
    """Raises RecordingError unless the directory or the URI has a recording that this version can read."""
    from ..recording import Recording
    from ..recording.layout import check_root
    from ..recording.storage import is_uri, local_path

    if is_uri(root) and local_path(root) is None:
        Recording(root).close()
    else:
        check_root(local_path(root) or Path(root))


@contextmanager
def store_errors(root: str) -> Iterator[None]:
    """Raises errors of the object store of a root as StorageFailed, and those of a full disk as DiskFull.

    Other errors of a disk stay as they are.
    """
    if not is_object_store(root):
        try:
            yield
        except TensorPoolError:
            raise
        except Exception as error:
            if getattr(error, "errno", None) not in DISK_FULL and not _OF_A_FULL_DISK.search(str(error)):
                raise
            why = f"{root}: no space left on the device; {RESUME_HINT}"
            raise DiskFull(why, path=root, code=errno.ENOSPC) from error
        return
    from deltalake.exceptions import DeltaError
    from obstore.exceptions import BaseError

    try:
        yield
    except (TensorPoolError, ConnectionError, FileNotFoundError):
        # Of this package, of the connection to Spark, and of an object that is missing.
        raise
    except (OSError, DeltaError, BaseError) as error:
        lines = [line.strip(" \t↳") for line in _COLOUR.sub("", str(error)).splitlines()]
        reason = next((line for line in reversed(lines) if line), type(error).__name__)
        raise StorageFailed(
            f"{root} does not answer: {reason}. The tables stay valid; run the pipeline again when the store "
            "answers",
            path=root,
        ) from error


@contextmanager
def short_errors() -> Iterator[None]:
    """Raises errors of Spark as PipelineError, with the line that says what failed."""
    try:
        yield
    except _errors_of_spark() as error:
        raise session_error(error) from error


def _errors_of_spark() -> tuple[type[Exception], ...]:
    """The errors of Spark's Python side, and those of the JVM and of a Connect server that it passes on."""
    from pyspark.errors import PySparkException

    # ConnectionError: py4j passes on that the JVM accepts no connections any more.
    found: list[type[Exception]] = [PySparkException, ConnectionError]
    # A client of Connect has no py4j, and a classic Spark may have no gRPC.
    for module, name in (("py4j.protocol", "Py4JError"), ("grpc", "RpcError")):
        with suppress(ImportError):
            found.append(getattr(import_module(module), name))
    return tuple(found)


def session_error(error: Exception) -> Exception:
    """A short error from the many lines of a Spark error."""
    text = str(error)
    if _is_without_jvm(error):
        return PipelineError(
            f"Spark: the JVM of its driver has ended: it ran out of memory or was killed ({text}). The "
            "tables stay valid; remove the cause and run the pipeline again"
        )
    for line in reversed(text.splitlines()):
        name, colon, message = line.strip().partition(": ")
        kind = name.rpartition(".")[2]
        if colon and name.startswith("tensorpool.errors."):
            if kind == "MissingPackage":
                return MissingPackage(message)
            return PipelineError(
                f"{message} ({kind}). The tables stay valid; remove the cause and run the pipeline again"
            )
    for pattern, cause in _CAUSES:
        if match := pattern.search(text):
            return PipelineError(
                f"Spark: {cause} ({match[0].strip()}). The tables stay valid; remove the cause and run the "
                "pipeline again"
            )
    return PipelineError(f"Spark: {_first_line(text)[:500]}")


def _is_without_jvm(error: Exception) -> bool:
    """Whether the connection to the JVM broke. py4j says so by several errors, which name no cause."""
    name = type(error).__name__
    if isinstance(error, ConnectionError) or name == "Py4JNetworkError":
        return True
    return (
        name == "Py4JError"
        and str(error).startswith("An error occurred while calling")
        and ("Trace:" not in str(error))
    )


def _first_line(text: str) -> str:
    """The line that says what failed: the last cause before stack traces, plans and thread dumps begin."""
    head = _APPENDIX.split(text, maxsplit=1)[0]
    lines = [line.strip() for line in head.splitlines() if line.strip() and not _TRACE.match(line)]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    return (causes or lines or [text.strip()])[-1 if causes else 0]


def describe(settings: PipelineSettings) -> JsonMapping:
    """The definition as JSON."""
    return marker.as_tables(settings)


# --- the Spark session


def open_session(*, master: str | None = None, remote: str | None = None) -> SparkSession:
    """Opens a session.

    `remote` is the address of a Connect server (`sc://host`). `master` is Spark's master URL; None for
    `local[*]`. Raises MissingPackage if Spark is not installed.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise MissingPackage(
            "a pipeline needs Spark: pip install 'aeron-tensorpool[spark]', and Java 17 or newer"
        ) from error
    if remote is not None:
        with _signals_stay():
            return SparkSession.builder.remote(remote).getOrCreate()
    chosen = master or DEFAULT_MASTER
    # Python workers need this interpreter; by default Spark starts the `python3` of the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    session_settings = dict(_SESSION_SETTINGS)
    if chosen.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        session_settings |= _LOCAL_SETTINGS
    builder = SparkSession.builder.master(chosen).appName("tensorpool-pipeline")
    for name, value in session_settings.items():
        builder = builder.config(name, value)
    with _signals_stay():
        spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


@contextmanager
def session_of(
    spark: SparkSession | None, *, master: str | None = None, remote: str | None = None
) -> Iterator[SparkSession]:
    """A given session, which stays open, or a new one for the block."""
    if spark is not None:
        yield spark
        return
    session = open_session(master=master, remote=remote)
    try:
        yield session
    finally:
        # A JVM or a server that is gone cannot be stopped. The error of the block says why it is gone.
        with suppress(*_errors_of_spark()):
            session.stop()


@contextmanager
def _signals_stay() -> Iterator[None]:
    """Restores the handler of SIGINT. Spark replaces it to cancel its jobs on Ctrl-C; a run has to complete
    its micro-batch instead."""
    is_ours = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if is_ours else None
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)
