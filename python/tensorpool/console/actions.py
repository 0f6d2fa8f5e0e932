"""Requests of a browser beyond watching: services, recordings, pipelines, and orders.

An order has two steps. `prepare` says in one sentence what would be done and returns a number that only
this viewer can use, once and for two minutes; `confirm` does it. Both need the role that may steer. Every
order is logged and is a notice of the system; one to a service is echoed by the service itself.

What takes long is a job: a check, an export or a report runs on a worker thread, a recorder or a replay in
a process of its own, the same command that a terminal would run. A recorder continues when the console ends.
A browser names a recording or pipeline of a list and never a path. Requests run on worker threads.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from secrets import token_urlsafe
from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypedDict, TypeVar
from urllib.parse import unquote

from ..errors import RequestRejected, TensorPoolError
from ..monitor.reports import Notice
from ..recording import Recording, export, verify
from ..recording.gaps import LedgerReply
from ..recording.table_store import open_store
from ..service import ServiceClient
from ..text import JsonMapping, JsonValue, safe_text
from .access import ViewerRole
from .frames import FrameHeader, FrameView, encode_frame, meta_text
from .viewer import ConsoleJob, JobReply, Reply, RequestHandler, ServedFile, Viewer, follow_process

if TYPE_CHECKING:
    from ..pipeline.status import Counts
    from .server import ConsoleServer

_LOG = logging.getLogger(__name__)
_CONFIRM_S: Final = 120.0
_MAX_PREPARED: Final = 256
_MAX_RECORDINGS: Final = 500
_MAX_GAPS: Final = 2000
_MAX_JOBS: Final = 32
_MAX_THREAD_JOBS: Final = 2
"""Checks, exports and reports at once: the other workers answer requests."""
_MAX_PROCESSES: Final = 8
_MAX_STREAMS: Final = 64
_MAX_PIPELINES: Final = 50
_SAMPLE_ROWS: Final = 20
_MAX_CELL: Final = 120
_RECORDED_WATCH: Final = 900
"""The watch of every recorded frame, by which the page knows it; `static/frame.js` has the same number."""
_MAX_TEXT: Final = 500
_SHARED_S: Final = 1.0
_TIMEOUT_S: Final = 10.0
_END_S: Final = 20.0
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
EXPORT_FORMS: Final = ("npy", "npz", "parquet", "mcap", "zarr")

T = TypeVar("T")


# --- replies


class DescribeReply(TypedDict):
    """A service, as its own `describe()` replies, with the values of its properties."""

    tag: str
    description: object


class PreparedReply(TypedDict):
    """An order that waits for its confirmation."""

    number: str
    text: str


class ConfirmedReply(TypedDict):
    """An order that was done, and what its service or its job replied."""

    text: str
    result: object


class StartedJob(TypedDict):
    """The number of a job that has started."""

    job: int


class StartedProcess(StartedJob):
    """A job in a process of its own."""

    pid: int


class JobsReply(TypedDict):
    """All jobs, newest first."""

    jobs: list[JobReply]


class VerifyReply(TypedDict):
    """The result of a check of a recording."""

    ok: bool
    rows: int
    bytes: int
    problems: list[str]
    notes: list[str]


class ExportReply(TypedDict):
    """The file that an export has written."""

    frames: int
    bytes: int | None
    path: str | None
    name: str


class ReportReply(TypedDict):
    """The sums of a report page."""

    frames: int
    faults: list[str]


class RecordingRow(TypedDict):
    """A recording; `state` and `recorder` are of the recorder that writes it now."""

    root: str
    streams: list[str]
    segments: int
    bytes: int
    error: str
    state: str
    recorder: str | None


class RecordingsReply(TypedDict):
    """All recordings, and the directory of new ones."""

    recordings: list[RecordingRow]
    directory: str | None


class RecordedStream(TypedDict):
    """A stream of a recording."""

    stream: int
    name: str
    epochs: list[LedgerReply]
    gaps: list[list[str | int]]
    """Epoch, first sequence, count and reason of each gap; 64-bit numbers are text."""
    more_gaps: int


class RecordingReply(TypedDict):
    """A recording by stream."""

    root: str
    streams: list[RecordedStream]


class PipelineTable(TypedDict):
    """A table of a pipeline."""

    name: str
    version: int
    files: int
    rows: int
    bytes: int


class StageRow(TypedDict):
    """A stage of a pipeline: the members of `StageJson`, and the rate of its last batch."""

    batch: int
    rows: int
    bytes: int
    seconds: float
    at_ns: str | None
    totals: Counts
    bytes_per_s: float


class PipelineRow(TypedDict):
    """A pipeline: the members of `StatusJson`, and its tables."""

    root: str
    id: str
    name: str | None
    versions: dict[str, int]
    is_running: bool
    stages: dict[str, StageRow]
    last_frames_ns: dict[str, str]
    pending: dict[str, int]
    tables: list[PipelineTable]
    error: str


class FailedPipeline(TypedDict):
    """A pipeline that cannot be read, with the reason."""

    root: str
    error: str


class PipelinesReply(TypedDict):
    """All pipelines."""

    pipelines: list[PipelineRow | FailedPipeline]
    now_ns: str


class SampleReply(TypedDict):
    """Rows of a table, as text."""

    table: str
    columns: list[str]
    rows: list[list[str]]


# --- the requests


@dataclass(frozen=True, slots=True)
class PreparedOrder:
    """An order that waits for its confirmation."""

    viewer: int
    text: str
    run: Callable[[], object]
    stream_id: int | None
    expires_s: float


class SharedReply(Generic[T]):
    """A reply for all viewers, made again when it is old: pages poll, and each reply reads many files."""

    def __init__(self, max_age_s: float = _SHARED_S) -> None:
        self._max_age_s = max_age_s
        self._lock = threading.Lock()
        self._reply: T | None = None
        self._key: object = None
        self._made_s = 0.0

    def get(self, make: Callable[[], T], key: object = None) -> T:
        """The reply, of `make` if the last one is old or of another key.

        Requests at the same time wait for one call of it.
        """
        with self._lock:
            is_old = time.monotonic() - self._made_s > self._max_age_s
            if self._reply is None or is_old or key != self._key:
                self._reply, self._key = make(), key
                self._made_s = time.monotonic()
            return self._reply


@dataclass(slots=True)
class ConsoleActions:
    """The requests of one console."""

    server: ConsoleServer
    service_token: str | None = field(default=None, repr=False)
    _prepared: OrderedDict[str, PreparedOrder] = field(default_factory=OrderedDict)
    _jobs: OrderedDict[int, ConsoleJob] = field(default_factory=OrderedDict)
    _directory: Path | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _recordings: SharedReply[RecordingsReply] = field(default_factory=SharedReply)
    _pipelines: SharedReply[list[PipelineRow | FailedPipeline]] = field(default_factory=SharedReply)

    def handlers(self) -> dict[str, RequestHandler]:
        """The requests by name."""
        return {
            "describe": self.describe,
            "prepare": self.prepare,
            "confirm": self.confirm,
            "recordings": self.recordings,
            "recording": self.recording,
            "recorded-frame": self.recorded_frame,
            "verify": self.verify,
            "job": self.job,
            "jobs": self.jobs,
            "pipelines": self.pipelines,
            "table": self.table,
            "report": self.report,
        }

    def close(self) -> None:
        """Ends replays and removes files that were made for a browser. Recorders continue."""
        for job in list(self._jobs.values()):
            if job.kind == "record":
                continue
            job.end()
            if job.thread is not None:
                job.thread.join(_END_S)
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    # --- services and orders

    def describe(self, viewer: Viewer, arguments: JsonMapping) -> DescribeReply:
        """Properties and commands of a service, with the values of the properties."""
        tag = self._tag(arguments)
        with self._client(tag) as client:
            description = client.call("describe")
            for name, declared in description["properties"].items():
                declared["value"] = client.get(name)
        return {"tag": tag, "description": description}

    def prepare(self, viewer: Viewer, arguments: JsonMapping) -> PreparedReply:
        """What an order would do, and the number that confirms it."""
        _check_steering(viewer)
        match arguments.get("action", "service"):
            case "service":
                text, run, stream_id = self._service_order(arguments)
            case "record":
                text, run, stream_id = self._record_order(arguments)
            case "export":
                text, run, stream_id = self._export_order(arguments)
            case "replay":
                text, run, stream_id = self._replay_order(arguments)
            case "end":
                text, run, stream_id = self._end_order(arguments)
            case _:
                raise RequestRejected("the console has no such order")
        order = PreparedOrder(id(viewer), text, run, stream_id, time.monotonic() + _CONFIRM_S)
        number = token_urlsafe(16)
        with self._lock:
            self._prepared[number] = order
            while len(self._prepared) > _MAX_PREPARED:
                self._prepared.popitem(last=False)
        return {"number": number, "text": text}

    def confirm(self, viewer: Viewer, arguments: JsonMapping) -> ConfirmedReply:
        """Does what was prepared, once."""
        _check_steering(viewer)
        with self._lock:
            order = self._prepared.pop(str(arguments.get("number")), None)
        if order is None or order.viewer != id(viewer) or time.monotonic() > order.expires_s:
            raise RequestRejected("this order was not prepared here, or two minutes ago; start again")
        _LOG.warning("order of the viewer %s: %s", viewer.address, order.text)
        try:
            result = order.run()
        except (TensorPoolError, OSError, ValueError) as error:
            self._record(order, f"refused: {error}")
            raise
        self._record(order, "done")
        return {"text": order.text, "result": result}

    def _record(self, order: PreparedOrder, outcome: str) -> None:
        self.server.feed.add_notice(
            Notice("order", order.stream_id, f"{order.text} {_short(safe_text(outcome))}")
        )

    def _service_order(self, arguments: JsonMapping) -> _Order:
        tag, name = self._tag(arguments), arguments.get("name")
        if not isinstance(name, str) or not 0 < len(name) <= 100:
            raise RequestRejected("name is the name of a command or property")
        value, is_property = arguments.get("value"), arguments.get("property") is True
        run: Callable[[], object]
        stream_id: JsonValue = None
        if is_property:
            if not isinstance(value, bool | int | float | str):
                raise RequestRejected("value is a number, a text, true or false")
            run = partial(self._set, tag, name, value)
        else:
            if not isinstance(value, Mapping):
                raise RequestRejected("value is an object with the arguments of the command")
            run = partial(self._call, tag, name, value)
            stream_id = value.get("stream_id")
        text = order_text(tag, name, value, is_property)
        return text, run, stream_id if isinstance(stream_id, int) else None

    def _set(self, tag: str, name: str, value: bool | int | float | str) -> object:
        with self._client(tag) as client:
            return client.set(name, value)

    def _call(self, tag: str, name: str, arguments: JsonMapping) -> object:
        with self._client(tag) as client:
            return client.call(name, arguments)

    def _tag(self, arguments: JsonMapping) -> str:
        tag = arguments.get("tag")
        known = {service.tag for service in self.server.feed.snapshot.services}
        if not isinstance(tag, str) or tag not in known:
            raise RequestRejected(f"no service {tag!r} answers here; the view Services lists them")
        return tag

    def _client(self, tag: str) -> ServiceClient:
        _, name, instance = f"{tag}::".split(":", 2)
        return self.server.context.service(
            name, instance=instance.strip(":") or None, timeout=_TIMEOUT_S, token=self.service_token
        )

    # --- jobs

    def job(self, viewer: Viewer, arguments: JsonMapping) -> JobReply:
        """Progress or result of a job."""
        return self._job(arguments).to_json()

    def jobs(self, viewer: Viewer, arguments: JsonMapping) -> JobsReply:
        """All jobs, newest first."""
        with self._lock:
            rows = [job.to_json() for job in self._jobs.values()]
        return {"jobs": rows[::-1]}

    def _job(self, arguments: JsonMapping) -> ConsoleJob:
        job = self._jobs.get(_integer(arguments, "job"))
        if job is None:
            raise RequestRejected("there is no such job")
        return job

    def _end_order(self, arguments: JsonMapping) -> _Order:
        job = self._job(arguments)
        if not job.is_running:
            raise RequestRejected(f"{job.title} has ended already")

        def run() -> object:
            job.end()
            return {"job": job.number}

        return f"End: {job.title}.", run, None

    def _new_job(self, kind: str, root: str, title: str) -> ConsoleJob:
        is_process = kind in ("record", "replay")
        with self._lock:
            running = [job for job in self._jobs.values() if job.is_running]
            alike = [job for job in running if (job.process is not None) is is_process]
            if any(job.kind == kind and job.root == root and kind != "export" for job in running):
                raise RequestRejected(f"this is running already: {kind} of {root}; wait for it")
            if len(alike) >= (_MAX_PROCESSES if is_process else _MAX_THREAD_JOBS):
                raise RequestRejected("so many jobs run at once; wait for one of them, or end it")
            number = max(self._jobs, default=0) + 1
            job = self._jobs[number] = ConsoleJob(number, kind, root, title)
            for old in [key for key, known in self._jobs.items() if not known.is_running]:
                if len(self._jobs) <= _MAX_JOBS:
                    break
                del self._jobs[old]
                self.server.files.pop(old, None)
        return job

    def _submit(self, job: ConsoleJob, work: Callable[[ConsoleJob], Reply]) -> StartedJob:
        """Runs work on a worker thread."""

        def run() -> None:
            try:
                job.result = work(job)
            except (TensorPoolError, OSError, ValueError, ImportError) as error:
                job.error = safe_text(str(error) or repr(error))
            except Exception:
                _LOG.exception("%s failed", job.title)
                job.error = "the console failed here; its log has the reason"

        self.server.workers.submit(run)
        return {"job": job.number}

    def _spawn(self, job: ConsoleJob, *arguments: str) -> StartedProcess:
        """Runs a command in a process of its own, which the end of the console does not end."""
        options = self.server.options
        command = [sys.executable, "-m", "tensorpool", *arguments]
        command += ["--aeron-dir", str(self.server.context.aeron_dir)]
        command += [] if options.config is None else ["--config", options.config]
        errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - the thread that follows the process closes it
        try:
            job.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if job.kind == "replay" else subprocess.DEVNULL,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        except BaseException as error:
            errors.close()
            job.error = str(error)
            raise
        job.thread = threading.Thread(
            target=partial(follow_process, job, errors), name=f"console-job-{job.number}", daemon=True
        )
        job.thread.start()
        return {"job": job.number, "pid": job.process.pid}

    def _own_directory(self) -> Path:
        """A private directory for files that a browser fetches."""
        with self._lock:
            if self._directory is None:
                self._directory = Path(tempfile.mkdtemp(prefix="tensorpool-console-"))
            return self._directory

    # --- recordings

    def _candidates(self) -> Iterator[tuple[Path, bool]]:
        """Directories that may be recordings, and whether a running recorder says so."""
        for recorder in self.server.feed.snapshot.recorders:
            if (root := Path(recorder.root)).is_dir():
                yield root, True
        for directory in self.server.options.recordings:
            for candidate in [directory, *sorted(directory.iterdir())] if directory.is_dir() else []:
                if candidate.is_dir():
                    yield candidate, False

    def _root(self, arguments: JsonMapping) -> Path:
        """The recording of a request. Only this one is looked at: a slider asks many times a second."""
        name = str(arguments.get("root"))
        for candidate, is_known in self._candidates():
            if str(candidate) == name and (is_known or is_recording(candidate)):
                return candidate
        raise RequestRejected("there is no such recording; the view Recordings lists them")

    def recordings(self, viewer: Viewer, arguments: JsonMapping) -> RecordingsReply:
        """All recordings, with their size and streams, and where a new one would be written."""
        # A page asks when it sees that a recorder has come or left: its list must have that, too.
        recorders = tuple((recorder.root, recorder.state) for recorder in self.server.feed.snapshot.recorders)
        return self._recordings.get(self._list_recordings, recorders)

    def _list_recordings(self) -> RecordingsReply:
        active = {recorder.root: recorder for recorder in self.server.feed.snapshot.recorders}
        roots: dict[str, Path] = {}
        for candidate, is_known in self._candidates():
            if len(roots) < _MAX_RECORDINGS and (is_known or is_recording(candidate)):
                roots.setdefault(str(candidate), candidate)
        rows = []
        for name, root in roots.items():
            recorder = active.get(name)
            row: RecordingRow = {
                "root": name,
                "streams": [],
                "segments": 0,
                "bytes": 0,
                "error": "",
                "state": "" if recorder is None else recorder.state,
                "recorder": None if recorder is None else recorder.tag,
            }
            try:
                with Recording(root) as recording:
                    row["streams"] = [recording.label(stream_id) for stream_id in recording.streams]
                    row["segments"] = len(recording.segments)
                row["bytes"] = sum(_size(file) for file in root.rglob("*"))
            except (TensorPoolError, OSError) as error:
                row["error"] = safe_text(str(error))
            rows.append(row)
        directories = [str(directory) for directory in self.server.options.recordings]
        return {"recordings": rows, "directory": directories[0] if directories else None}

    def recording(self, viewer: Viewer, arguments: JsonMapping) -> RecordingReply:
        """Rows, gaps with their reasons, and epochs of every stream of a recording."""
        with Recording(self._root(arguments)) as recording:
            streams: list[RecordedStream] = []
            for stream_id in recording.streams:
                gaps = recording.gaps(stream_id)
                streams.append(
                    {
                        "stream": stream_id,
                        "name": recording.names.get(stream_id, ""),
                        "epochs": [ledger.to_json() for ledger in recording.ledger(stream_id)],
                        "gaps": [
                            [str(gap.epoch), str(gap.first_seq), gap.count, gap.reason]
                            for gap in gaps[:_MAX_GAPS]
                        ],
                        "more_gaps": max(0, len(gaps) - _MAX_GAPS),
                    }
                )
            return {"root": str(recording.root), "streams": streams}

    def recorded_frame(self, viewer: Viewer, arguments: JsonMapping) -> bytes:
        """The frame with a sequence, or the next one behind a gap."""
        stream_id, epoch = _integer(arguments, "stream"), _integer(arguments, "epoch")
        seq = _integer(arguments, "seq")
        view = FrameView.from_json(arguments.get("view") or {})
        with Recording(self._root(arguments)) as recording:
            for frame in recording.frames(stream_id, epoch=epoch, seq=(seq, None)):
                facts: FrameHeader = {"watch": _RECORDED_WATCH, "meta": meta_text(frame.meta)}
                return encode_frame(frame, view, facts)
        raise RequestRejected(f"stream {stream_id} has no frame from {seq} on in this epoch")

    def verify(self, viewer: Viewer, arguments: JsonMapping) -> StartedJob:
        """Starts a check of every checksum of a recording. It only reads: any viewer may."""
        root = self._root(arguments)
        job = self._new_job("verify", str(root), f"verify {root.name}")

        def work(job: ConsoleJob) -> VerifyReply:
            result = verify(root, progress=job.progress)
            return {
                "ok": result.ok,
                "rows": result.rows,
                "bytes": result.size_bytes,
                "problems": [safe_text(str(problem)) for problem in result.problems[:50]],
                "notes": [safe_text(str(note)) for note in result.notes[:50]],
            }

        return self._submit(job, work)

    def _record_order(self, arguments: JsonMapping) -> _Order:
        """A recorder of its own for some streams, below the first directory of `--recordings`."""
        name, chosen = arguments.get("name"), arguments.get("streams")
        directories = self.server.options.recordings
        if not directories:
            raise RequestRejected("tensorpool console --recordings DIR says where new recordings are written")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise RequestRejected("name is a file name of letters, digits, . _ and -, as in run-7")
        snapshot = self.server.feed.snapshot
        known = {stream.stream_id: stream.name or str(stream.stream_id) for stream in snapshot.streams}
        if not isinstance(chosen, list) or not 0 < len(chosen) <= _MAX_STREAMS:
            raise RequestRejected(f"streams are 1 to {_MAX_STREAMS} ids")
        if unknown := [stream_id for stream_id in chosen if stream_id not in known]:
            raise RequestRejected(f"there is no stream {unknown[0]}")
        root = directories[0] / name
        if root.exists():
            raise RequestRejected(f"{root} exists already; choose another name")
        seconds = arguments.get("seconds")
        if seconds is not None and not (isinstance(seconds, int | float) and 0 < seconds <= 86_400):
            raise RequestRejected("seconds is a time up to a day; without it the recording continues")

        def run() -> object:
            job = self._new_job("record", str(root), f"record {name}")
            streams = [part for stream_id in chosen for part in ("--stream", str(stream_id))]
            limit = [] if seconds is None else ["--seconds", str(seconds)]
            return self._spawn(
                job, "record", "--out", str(root), "--instance", name, "--quiet", *streams, *limit
            )

        names = ", ".join(safe_text(known[stream_id]) for stream_id in chosen)
        until = "until it is ended" if seconds is None else f"for {seconds:g} s"
        return _short(f"Record {names} into {root} {until}."), run, None

    def _export_order(self, arguments: JsonMapping) -> _Order:
        """Writes a stream of a recording in another format; the console chooses the file."""
        root, form = self._root(arguments), arguments.get("form")
        if form not in EXPORT_FORMS:
            raise RequestRejected(f"form is one of {', '.join(EXPORT_FORMS)}")
        with Recording(root) as recording:
            stream_id = _integer(arguments, "stream")
            if stream_id not in recording.streams:
                raise RequestRejected(f"{root} has no stream {stream_id}")
            label = recording.label(stream_id)
        kept = self.server.options.exports
        if form == "zarr" and kept is None:
            raise RequestRejected("zarr is a directory: start the console with --exports DIR")

        def run() -> object:
            job = self._new_job("export", str(root), f"export {label} of {root.name} as {form}")
            target = (kept or self._own_directory()) / f"{root.name}-{stream_id}-{job.number}.{form}"

            def work(job: ConsoleJob) -> ExportReply:
                frames = export(root, target, form=form, stream_id=stream_id, progress=job.progress)
                if target.is_file():
                    self.server.files[job.number] = ServedFile(target, target.name)
                size = target.stat().st_size if target.is_file() else None
                path = str(target) if kept is not None else None
                return {"frames": frames, "bytes": size, "path": path, "name": target.name}

            return self._submit(job, work)

        return f"Export {safe_text(label)} of {root} as {form}.", run, stream_id

    def _replay_order(self, arguments: JsonMapping) -> _Order:
        """Publishes a recording again, by a process of its own."""
        root, speed = self._root(arguments), arguments.get("speed", 1)
        if speed != "max" and not (isinstance(speed, int | float) and 0.001 <= speed <= 1000):
            raise RequestRejected("speed is a factor to the recorded speed, as in 1, or max")
        first_id, loops = arguments.get("first_id"), arguments.get("loop") is True
        if first_id is not None and not (type(first_id) is int and 0 < first_id < 1 << 31):
            raise RequestRejected("first_id is the id of a stream")
        with Recording(root) as recording:
            recorded = recording.streams
            labels = [recording.label(stream_id) for stream_id in recorded]
        if not recorded:
            raise RequestRejected(f"{root} has no frames")
        targets = list(recorded) if first_id is None else [first_id + at for at in range(len(recorded))]
        live = {s.stream_id for s in self.server.feed.snapshot.streams if s.producer is not None}
        if taken := [stream_id for stream_id in targets if stream_id in live]:
            raise RequestRejected(
                f"stream {taken[0]} has a producer; give a first id, and the replay uses other streams"
            )
        speed_text = "as fast as possible" if speed == "max" else f"at {speed:g} times its speed"

        def run() -> object:
            job = self._new_job("replay", str(root), f"replay {root.name}")
            pairs = zip(recorded, targets, strict=True)
            maps = [part for old, new in pairs if old != new for part in ("--map", f"{old}={new}")]
            loop = ["--loop"] if loops else []
            return self._spawn(job, "replay", str(root), "--json", "--speed", str(speed), *loop, *maps)

        names = ", ".join(
            f"{safe_text(label)}" + ("" if old == new else f" as {new}")
            for label, old, new in zip(labels, recorded, targets, strict=True)
        )
        again = ", again and again" if loops else ""
        return _short(f"Replay {root} {speed_text}{again}: {names}."), run, None

    # --- pipelines

    def _pipeline_roots(self) -> dict[str, str]:
        roots: dict[str, str] = {}
        for place in self.server.options.pipelines:
            if "://" in place:
                roots[place] = place
                continue
            directory = Path(place)
            for candidate in [directory, *sorted(directory.iterdir())] if directory.is_dir() else []:
                if (candidate / "pipeline.json").is_file() and len(roots) < _MAX_PIPELINES:
                    roots[str(candidate)] = str(candidate)
        return roots

    def _pipeline(self, arguments: JsonMapping) -> str:
        root = self._pipeline_roots().get(str(arguments.get("root")))
        if root is None:
            raise RequestRejected("there is no such pipeline; the view Pipelines lists them")
        return root

    def pipelines(self, viewer: Viewer, arguments: JsonMapping) -> PipelinesReply:
        """The status of every pipeline, as `tensorpool pipeline status --json` prints it, and its tables."""
        pipelines = self._pipelines.get(self._list_pipelines)
        return {"pipelines": pipelines, "now_ns": str(time.time_ns())}

    def _list_pipelines(self) -> list[PipelineRow | FailedPipeline]:
        rows: list[PipelineRow | FailedPipeline] = []
        for root in self._pipeline_roots().values():
            try:
                rows.append(_pipeline_row(root))
            except (TensorPoolError, OSError, ValueError, ImportError) as error:
                rows.append({"root": root, "error": safe_text(str(error))})
        return rows

    def table(self, viewer: Viewer, arguments: JsonMapping) -> SampleReply:
        """The last rows of a table, as text."""
        root, name = self._pipeline(arguments), arguments.get("table")
        known = {row["name"] for row in _table_rows(root)}
        if name not in known:
            raise RequestRejected(f"the pipeline has no table {name!r}")
        return _table_sample(root, str(name))

    def report(self, viewer: Viewer, arguments: JsonMapping) -> StartedJob:
        """Writes the report page of a pipeline; the browser opens it. It only reads: any viewer may."""
        root = self._pipeline(arguments)
        job = self._new_job("report", root, f"report on {Path(root).name}")

        def work(job: ConsoleJob) -> ReportReply:
            from ..pipeline import report

            target = self._own_directory() / f"report-{job.number}.html"
            result = report.write(root, target)
            self.server.files[job.number] = ServedFile(target, target.name, is_page=True)
            return {
                "frames": result.total("frames"),
                "faults": [safe_text(fault) for fault in result.faults[:50]],
            }

        return self._submit(job, work)


def _size(file: Path) -> int:
    """The bytes of a file; 0 for what is none, or is gone: a recorder renames its segments."""
    try:
        status = file.stat()
    except FileNotFoundError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


_Order: TypeAlias = tuple[str, Callable[[], object], int | None]
"""What an order does in one sentence, the function that does it, and the stream that it is about."""


def _pipeline_row(root: str) -> PipelineRow:
    from ..pipeline import status

    row = status(root).to_json()
    stages: dict[str, StageRow] = {
        name: {**stage, "bytes_per_s": stage["bytes"] / stage["seconds"] if stage["seconds"] > 0 else 0.0}
        for name, stage in row["stages"].items()
    }
    return {**row, "stages": stages, "tables": _table_rows(root), "error": ""}


def _table_rows(root: str) -> list[PipelineTable]:
    """Name, version, files, rows and bytes of every table that exists."""
    import pyarrow as pa

    from ..pipeline import marker
    from ..pipeline.delta import DeltaTables, require

    require()
    tables = DeltaTables(root)
    rows: list[PipelineTable] = []
    for name in marker.tables(marker.read_all(root)):
        if (table := tables.find(name)) is None:
            continue
        files = pa.table(table.get_add_actions(flatten=True))
        sums = {
            column: sum(value or 0 for value in files[column].to_pylist())
            for column in ("size_bytes", "num_records")
        }
        rows.append(
            {
                "name": name,
                "version": table.version(),
                "files": files.num_rows,
                "rows": sums["num_records"],
                "bytes": sums["size_bytes"],
            }
        )
    return rows


def _table_sample(root: str, name: str) -> SampleReply:
    """The rows of the newest file, as short texts; payloads only by their size."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from ..pipeline.delta import DeltaTables

    table = DeltaTables(root).find(name)
    if table is None:
        raise RequestRejected(f"the pipeline has no table {name!r}")
    actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    if not actions:
        return {"table": name, "columns": [], "rows": []}
    newest = max(actions, key=lambda action: action["modification_time"])
    with pq.ParquetFile(
        open_store(root).source(f"{name}/{unquote(newest['path'])}"), pre_buffer=False
    ) as file:
        columns = file.schema_arrow.names
        batch = next(file.iter_batches(_SAMPLE_ROWS, use_threads=False), None)
    rows = [] if batch is None else [[_cell(value) for value in row.values()] for row in batch.to_pylist()]
    return {"table": name, "columns": columns, "rows": rows}


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    text = safe_text(str(value))
    return text if len(text) <= _MAX_CELL else f"{text[:_MAX_CELL]}…"


def is_recording(path: Path) -> bool:
    """Whether a directory looks like a recording."""
    try:
        Recording(path).close()
    except (TensorPoolError, OSError, ValueError):
        return False
    return True


def order_text(tag: str, name: str, value: object, is_property: bool) -> str:
    """An order in one sentence. A token among the arguments is not shown."""
    service = safe_text(tag.removeprefix("service:"))
    if is_property:
        return _short(f"Set {safe_text(name)} of {service} to {safe_text(json.dumps(value))}.")
    shown = value if isinstance(value, dict) else {}
    arguments = ", ".join(
        f"{safe_text(str(key))}={'…' if key == 'token' else safe_text(json.dumps(item))}"
        for key, item in shown.items()
    )
    return _short(f"Call {safe_text(name.removesuffix('()'))}({arguments}) of {service}.")


def _short(text: str) -> str:
    """A text for the record: every viewer gets the last orders, whatever their size."""
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 1]}…"


def _check_steering(viewer: Viewer) -> None:
    if viewer.role is not ViewerRole.STEER:
        raise RequestRejected("this address only watches; open the first address that the console printed")


def _integer(arguments: JsonMapping, name: str) -> int:
    """Numbers of 64 bits travel as text."""
    value = arguments.get(name)
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= 20:
        return int(value)
    if type(value) is int and value >= 0:
        return value
    raise RequestRejected(f"{name} is a whole number")


def request_handlers(
    service_token: str | None = None,
) -> Callable[[ConsoleServer], Mapping[str, RequestHandler]]:
    """The requests of a console. `service_token` is for commands of services that demand one."""

    def make(server: ConsoleServer) -> Mapping[str, RequestHandler]:
        actions = ConsoleActions(server, service_token)
        server.on_close.append(actions.close)
        return actions.handlers()

    return make
