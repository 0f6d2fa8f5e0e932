"""The checks of the demo: the joined ledger, the kill of the camera, recording, replay, Spark, whole system.

Every frame that a camera committed has to be accounted for at each viewer, in the recording, in the replay
and in the tables of the pipeline. Each check returns its faults as text; without faults the demo succeeds.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Final

from .. import _native, recording
from ..client import ReportOptions
from ..context import Context
from ..context import open as open_context
from ..monitor.ledger import LedgerRow, Verdict
from ..monitor.listener import SystemMonitor
from ..shm.epoch_files import HEADER_RING
from ..shm.inspect import read_ring
from ..text import JsonMapping
from .processes import NSLOTS, ChildProcess, DemoEnvironment, DemoFailed, DemoTimeout, matches_pattern
from .reports import (
    CameraLedger,
    CameraReady,
    DriverReady,
    DriverSample,
    FirstFrame,
    ReplayLedger,
    Revoked,
    Unmapped,
    ViewerLedger,
    ViewerReport,
)

REPLAY_SPEED: Final = 4.0
REPLAY_NSLOTS: Final = 32
"""Deep enough that a consumer which is delayed for a moment misses no frame."""
REPLAY_STREAM_ID: Final = 10_001

_MAX_IN_FLIGHT: Final = 1
"""A camera writes one frame at a time: at most one is committed and has no descriptor yet."""
_MAX_CHECKED_FRAMES: Final = 5_000
"""Of a long recording only the first frames are compared pixel by pixel, which takes time."""
_LAST_FRAME_S: Final = 1.0
"""How long after the camera's end a viewer may still receive its first frame."""
_SPARK_TIMEOUTS: Final = 10
"""Spark starts a Java machine and runs several jobs: it gets the time of that many steps."""
_POLL_S: Final = 0.02
_SETTLE_S: Final = 20.0

# --- the joined ledger (pure)


@dataclass(frozen=True, slots=True)
class CameraEpoch:
    """One epoch of the camera and its viewers. Of a killed camera, `committed` is counted in its ring."""

    epoch: str
    committed: int
    viewers: dict[str, ViewerLedger]
    was_killed: bool = False
    half_written: int = 0
    published: int | None = None
    unpublished: dict[str, int] = field(default_factory=dict)

    def in_flight(self, viewer: ViewerLedger) -> int:
        """Frames that were committed, and whose descriptor was not published when the camera died."""
        return self.committed - viewer.accounted

    def faults(self) -> list[str]:
        """Why the epoch does not add up."""
        faults = []
        if self.published is not None and self.committed != self.published + sum(self.unpublished.values()):
            faults.append("the camera's frames do not add up")
        limit = _MAX_IN_FLIGHT if self.was_killed else 0
        for name, viewer in self.viewers.items():
            if viewer.torn:
                faults.append(f"the {name} received {viewer.torn} torn frames")
            if not viewer.balanced:
                faults.append(f"the {name}'s frames do not add up")
            if not 0 <= self.in_flight(viewer) <= limit:
                faults.append(f"the {name} accounts for {viewer.accounted} of {self.committed} frames")
        return [f"epoch {self.epoch}: {fault}" for fault in faults]

    def to_json(self) -> JsonMapping:
        """The entry of the demo's JSON output."""
        return {
            "epoch": self.epoch,
            "committed": self.committed,
            "committed_counted_by": "the header ring" if self.was_killed else "the camera",
            "half_written": self.half_written,
            "published": self.published,
            "unpublished": self.unpublished,
            "viewers": {
                name: {
                    "received": viewer.received,
                    "dropped": viewer.dropped,
                    "in_flight": self.in_flight(viewer),
                    "torn": viewer.torn,
                }
                for name, viewer in self.viewers.items()
            },
        }


def viewer_ledgers(epoch: str, reports: Mapping[str, ViewerReport]) -> dict[str, ViewerLedger]:
    """The ledger of each viewer for one epoch, from its report; empty for an epoch that it never received."""
    return {name: report.epochs.get(epoch, ViewerLedger()) for name, report in reports.items()}


def find_faults(epochs: Sequence[CameraEpoch], reports: Mapping[str, ViewerReport]) -> list[str]:
    """Why the ledgers of all epochs do not add up."""
    faults = [fault for epoch in epochs for fault in epoch.faults()]
    for before, after in pairwise(epochs):
        if int(after.epoch) <= int(before.epoch):
            faults.append(f"epoch {after.epoch} is not above {before.epoch}")
    known = {epoch.epoch for epoch in epochs}
    for name, report in reports.items():
        unknown = [epoch for epoch in report.epochs if epoch not in known]
        if unknown:
            faults.append(f"the {name} has epochs that no camera published: {', '.join(unknown)}")
    return faults


# --- the kill of the camera


@dataclass(frozen=True, slots=True)
class RingCount:
    """The frames of a dead camera, counted in its header ring."""

    committed: int
    half_written: int
    """Frames that were begun and never committed: no consumer can read them."""


def count_ring(descriptor: int) -> RingCount:
    """Counts the frames of a header ring. Sequences start at 0 without gaps: the newest gives the count."""
    ring = read_ring(descriptor, NSLOTS, None)
    if problems := [problem for slot in ring.slots for problem in slot.problems]:
        raise DemoFailed(f"the ring of the killed camera is damaged: {'; '.join(problems)}")
    newest = ring.newest_seq
    return RingCount(0 if newest is None else newest + 1, ring.count("in_progress"))


@dataclass(slots=True)
class KillReport:
    """The kill of the camera and the recovery. Times in milliseconds count from the kill."""

    pid: int
    lease: str
    epoch: str
    lease_s: float
    """How long the lease would have lasted by its keepalives alone."""
    killed_ns: int
    ring: RingCount
    revoked_ms: float
    reason: str
    viewer_leases: dict[str, str | None]
    next_pid: int | None = None
    next_lease: str | None = None
    next_epoch: str | None = None
    restarted_ms: float | None = None
    unmapped_ms: dict[str, float] = field(default_factory=dict)
    resumed_ms: dict[str, float] = field(default_factory=dict)
    leases_kept: bool = False

    def after_ms(self, time_ns: int) -> float:
        """A time as milliseconds after the kill."""
        return (time_ns - self.killed_ns) / 1e6

    def to_json(self) -> JsonMapping:
        """The entry of the demo's JSON output."""
        return {
            "killed_process": self.pid,
            "lease_grace_s": self.lease_s,
            "revoked_ms": self.revoked_ms,
            "revoke_reason": self.reason,
            "viewers_unmapped_ms": self.unmapped_ms,
            "camera_restarted_ms": self.restarted_ms,
            "viewers_resumed_ms": self.resumed_ms,
            "viewer_leases_kept": self.leases_kept,
            "camera_lease": [self.lease, self.next_lease],
            "epoch": [self.epoch, self.next_epoch],
        }


def kill_camera(demo: DemoEnvironment) -> KillReport:
    """Kills the camera and waits until the driver has revoked its lease."""
    camera = demo.camera
    ready = camera.wait_for(CameraReady, demo.timeout_s)
    # Opened before the kill: the driver keeps the directory of a past epoch only for the grace.
    directory = _directory(demo, str(ready.epoch))
    descriptor = os.open(directory / HEADER_RING, os.O_RDONLY | os.O_CLOEXEC)
    try:
        killed_ns = time.monotonic_ns()
        camera.kill()
        ring = count_ring(descriptor)
    finally:
        os.close(descriptor)
    revoked = demo.driver.wait_for(Revoked, demo.timeout_s, key=str(ready.lease))
    return KillReport(
        pid=camera.pid,
        lease=str(ready.lease),
        epoch=str(ready.epoch),
        lease_s=demo.driver.wait_for(DriverReady, demo.timeout_s).lease_s,
        killed_ns=killed_ns,
        ring=ring,
        revoked_ms=(revoked.revoked_ns - killed_ns) / 1e6,
        reason=revoked.message or revoked.reason,
        viewer_leases=_viewer_leases(demo),
    )


def _directory(demo: DemoEnvironment, epoch: str) -> Path:
    """The directory of an epoch, from the driver's samples."""
    deadline = time.monotonic() + demo.timeout_s
    while (sample := demo.driver.report(DriverSample)) is None or sample.epoch != epoch:
        if time.monotonic() > deadline:
            raise DemoTimeout(f"the driver, asked to report epoch {epoch},", demo.timeout_s)
        time.sleep(0.01)
    return Path(str(sample.directory))


def wait_unmapped(kill: KillReport, demo: DemoEnvironment) -> None:
    """Waits until every viewer has unmapped the epoch of the killed camera."""
    for viewer in demo.viewers:
        report = viewer.wait_for(Unmapped, demo.timeout_s, key=kill.epoch)
        kill.unmapped_ms[viewer.name] = kill.after_ms(report.unmapped_ns)


def wait_restarted(kill: KillReport, demo: DemoEnvironment) -> None:
    """Waits until the restarted camera is ready."""
    ready = demo.camera.wait_for(CameraReady, demo.timeout_s)
    kill.next_pid, kill.next_lease = ready.pid, ready.lease
    kill.next_epoch, kill.restarted_ms = ready.epoch, kill.after_ms(ready.at_ns)


def wait_resumed(kill: KillReport, demo: DemoEnvironment) -> None:
    """Waits until every viewer has received a frame of the new epoch."""
    for viewer in demo.viewers:
        if (first := _first_frame(viewer, demo, kill.next_epoch)) is not None:
            kill.resumed_ms[viewer.name] = kill.after_ms(first.at_ns)
    kill.leases_kept = kill.viewer_leases == _viewer_leases(demo)


def _first_frame(viewer: ChildProcess, demo: DemoEnvironment, epoch: str | None) -> FirstFrame | None:
    """The report of the first frame of an epoch; None if the camera has ended and the viewer got none."""
    deadline = time.monotonic() + demo.timeout_s
    while (first := viewer.report(FirstFrame, key=str(epoch))) is None and time.monotonic() < deadline:
        viewer.check_alive()
        if demo.camera.report(CameraLedger) is not None:
            deadline = min(deadline, time.monotonic() + _LAST_FRAME_S)
        time.sleep(0.005)
    return first


def _viewer_leases(demo: DemoEnvironment) -> dict[str, str | None]:
    return {viewer.name: viewer.sample().lease for viewer in demo.viewers}


# --- the recording


@dataclass(frozen=True, slots=True)
class RecordedEpoch:
    """The ledger of one epoch in the recording: span = rows + gaps."""

    epoch: str
    first_seq: int
    span: int
    rows: int
    gaps: dict[str, int]
    balanced: bool


@dataclass(slots=True)
class RecordingCheck:
    """The contents of the recording, compared with the frames that the camera committed."""

    epochs: list[RecordedEpoch] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    torn: int = 0
    size_bytes: int = 0
    segments: int = 0
    recovered: list[str] = field(default_factory=list)
    """Segments that the killed recorder had left open and the next one recovered."""

    def faults(self, cameras: Sequence[CameraEpoch]) -> Iterator[str]:
        """Why not every committed frame is an intact row or in a gap."""
        yield from (f"the recording: {problem}" for problem in self.problems)
        if self.torn:
            yield f"the recording has {self.torn} torn frames"
        by_epoch = {camera.epoch: camera for camera in cameras}
        for recorded in self.epochs:
            if not recorded.balanced or "unexplained" in recorded.gaps:
                yield f"the recording of epoch {recorded.epoch} does not add up"
            camera = by_epoch.get(recorded.epoch)
            if camera is None:
                yield f"the recording has an epoch that no camera published: {recorded.epoch}"
            # A killed camera may have committed a frame whose descriptor it never published.
            elif not 0 <= camera.committed - (recorded.first_seq + recorded.span) <= int(camera.was_killed):
                yield f"epoch {recorded.epoch}: {camera.committed} frames, and the recording ends elsewhere"

    def totals(self) -> tuple[int, dict[str, int]]:
        """Rows, and missing frames by reason, of all epochs."""
        gaps: Counter[str] = Counter()
        for recorded in self.epochs:
            gaps.update(recorded.gaps)
        return sum(recorded.rows for recorded in self.epochs), dict(gaps)

    def to_json(self) -> JsonMapping:
        """The entry of the demo's JSON output."""
        return {
            "epochs": [
                {
                    "epoch": recorded.epoch,
                    "span": recorded.span,
                    "rows": recorded.rows,
                    "gaps": recorded.gaps,
                }
                for recorded in self.epochs
            ],
            "segments": self.segments,
            "bytes": self.size_bytes,
            "torn": self.torn,
            "problems": self.problems,
            "recovered": self.recovered,
        }


def check_recording(root: Path, stream_id: int, recovered: list[str]) -> RecordingCheck:
    """Checks every file and checksum of the recording, and the pixels of its frames."""
    check = RecordingCheck(recovered=recovered)
    verified = recording.verify(root)
    check.problems = [str(problem) for problem in verified.problems]
    check.size_bytes, check.segments = verified.size_bytes, verified.segments
    with recording.open(root) as opened:
        if stream_id not in opened.streams:
            return check
        for row in opened.ledger(stream_id):
            check.epochs.append(
                RecordedEpoch(str(row.epoch), row.first_seq, row.span, row.rows, row.gaps, row.balanced)
            )
        for number, frame in enumerate(opened.frames(stream_id)):
            if number >= _MAX_CHECKED_FRAMES:
                break
            check.torn += not (frame.valid() and matches_pattern(frame.array, frame.seq))
    return check


# --- the replay


@dataclass(slots=True)
class ReplayCheck:
    """The frames of a replay, compared with the checksums in the recording."""

    replayed: int = 0
    equal: int = 0
    wrong: int = 0
    missed: int = 0
    """Frames that were overwritten before they could be checked."""

    def faults(self) -> list[str]:
        """Why the replay differs from the recording."""
        faults = []
        if self.wrong:
            faults.append(f"the replay has {self.wrong} frames that differ from the recording")
        if self.equal + self.wrong + self.missed != self.replayed:
            checked = self.equal + self.wrong + self.missed
            faults.append(f"the replay's viewer accounts for {checked} of {self.replayed} frames")
        return faults

    def to_json(self) -> JsonMapping:
        """The entry of the demo's JSON output."""
        return {"replayed": self.replayed, "equal": self.equal, "wrong": self.wrong, "missed": self.missed}


def check_replay(demo: DemoEnvironment) -> ReplayCheck:
    """Replays the recording into another stream, and compares the checksum of every frame."""
    check = ReplayCheck()
    with recording.open(demo.recording) as opened:
        if demo.stream_id not in opened.streams:
            return check
        checksums = [frame.crc32c for frame in opened.frames(demo.stream_id)]
    if not checksums:
        return check
    options = replace(demo.options, stream_id=REPLAY_STREAM_ID)
    with options.attach() as ctx, ctx.consumer(REPLAY_STREAM_ID) as viewer:
        replayer = demo.start_replayer()
        replayer.send()
        while (frame := viewer.receive_or_none(0.05)) is not None or replayer.report(ReplayLedger) is None:
            replayer.check_alive()
            if frame is None:
                continue
            # A replay numbers its frames from 0, in the order of the recording.
            is_equal = _native.crc32c(frame.array.reshape(-1).view("uint8")) == checksums[frame.seq]
            if frame.valid():
                check.equal += is_equal
                check.wrong += not is_equal
        ledger = viewer.ledger()
        check.replayed = replayer.wait_for(ReplayLedger, demo.timeout_s).frames
        check.missed = ledger.span - check.equal - check.wrong
        replayer.send()
    return check


# --- Spark


@dataclass(frozen=True, slots=True)
class ReportCounts:
    """The figures of the report page."""

    frames: int
    drops: dict[str, int]
    faults: list[str]
    page_bytes: int


@dataclass(frozen=True, slots=True)
class TableCounts:
    """The counts of the gold table, the rows of the silver table, and the figures of the report page."""

    frames: int
    silver: int
    rejected: int
    drops: dict[str, int]
    report: ReportCounts


@dataclass(frozen=True, slots=True)
class SparkCheck:
    """Frames and equal checksums that a streaming query counted, and the figures of the pipeline's tables."""

    frames: int
    equal: int
    tables: TableCounts
    store: str | None = None
    """Where the archive and the tables are; None for this disk."""

    def __str__(self) -> str:
        where = "" if self.store is None else f" of {self.store}/recording"
        return f"a streaming query of Spark{where}: {self.frames:,} frames, {self.equal:,} checksums equal"

    def pipeline_text(self) -> str:
        """The figures of the pipeline in one sentence."""
        drops = ", ".join(f"{reason} {count:,}" for reason, count in sorted(self.tables.drops.items()))
        missing = f"missing: {drops or 'none'}; as in the ledger"
        where = "" if self.store is None else f" in {self.store}/tables"
        return f"a pipeline to gold tables{where} and a report page: {self.tables.frames:,} frames, {missing}"

    def faults(self, rows: int, gaps: Mapping[str, int]) -> list[str]:
        """Why the counts of Spark differ from those of the recording."""
        if self.frames != rows:
            return [f"Spark counts {self.frames} frames of {rows} recorded ones"]
        if self.equal != rows:
            return [f"Spark finds {rows - self.equal} frames whose checksum differs from the recorded one"]
        tables = self.tables
        if (tables.frames, tables.silver, tables.rejected) != (rows, rows, 0):
            return [f"the gold table has {tables.frames} frames and {tables.rejected} rejects, of {rows}"]
        missing = {reason: count for reason, count in gaps.items() if count}
        if tables.drops != missing:
            return [f"the gold table counts drops {tables.drops}, and the ledger {missing}"]
        page = tables.report
        if (page.frames, page.drops) != (rows, missing):
            return [f"the report has {page.frames} frames and drops {page.drops}, of {rows}, {missing}"]
        return [f"the report: {fault}" for fault in page.faults]

    def to_json(self) -> JsonMapping:
        """The entry of the demo's JSON output."""
        return asdict(self)


def parse_spark_check(line: str) -> SparkCheck:
    """The check in the JSON that the Spark process prints: that of `SparkCheck.to_json`."""
    document = json.loads(line)
    tables = document["tables"]
    counts = TableCounts(**{**tables, "report": ReportCounts(**tables["report"])})
    return SparkCheck(document["frames"], document["equal"], counts, document["store"])


def spark_fault() -> str | None:
    """Why Spark cannot run here; None if it can."""
    if shutil.which("java") is None:
        return "Java (17 or newer) is not installed"
    if importlib.util.find_spec("pyspark") is None:
        return "pyspark is not installed: pip install 'aeron-tensorpool[spark]'"
    return None


def s3_program() -> str | None:
    """The S3 server versitygw: on the PATH, or as `tools/s3-server` has built it. None if there is none."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    built = sorted(Path(cache, "tensorpool").glob("versitygw-*/versitygw"))
    return shutil.which("versitygw") or (str(built[-1]) if built else None)


def store_fault(store: str) -> str | None:
    """Why the demo cannot use a store: `disk`, `s3`, or a URI. None if it can."""
    if store == "disk":
        return None
    if (fault := spark_fault()) is not None:
        return f"tables in an object store need Spark, and {fault}"
    if importlib.util.find_spec("obstore") is None:
        return "tables in an object store need a package: pip install 'aeron-tensorpool[delta]'"
    if store == "s3" and s3_program() is None:
        return (
            "there is no S3 server on this machine: put versitygw on the PATH (a checkout's tools/s3-server "
            "builds it), or give a bucket of yours, as in --store s3://bucket/prefix"
        )
    if store != "s3" and "://" not in store:
        return f"{store} is no store; use disk, s3, or a URI as in s3://bucket/prefix"
    return None


def check_with_spark(
    root: Path, environment: Mapping[str, str], page: Path, *, timeout_s: float, store: str = "disk"
) -> SparkCheck:
    """Runs the Spark job over the recording. The page goes to `page`, archive and tables to `store`."""
    # A session of its own: Ctrl-C reaches the parent alone, and the job ends with its Java machine.
    with subprocess.Popen(
        [sys.executable, "-m", "tensorpool.demo.spark_job", str(root), str(page), store],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as job:
        try:
            output, errors = job.communicate(timeout=_SPARK_TIMEOUTS * timeout_s)
        except subprocess.TimeoutExpired:
            what = "the Spark query and the pipeline"
            options = f"--timeout {2 * timeout_s:g} or --no-spark"
            raise DemoTimeout(what, _SPARK_TIMEOUTS * timeout_s, options) from None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)
    if job.returncode != 0:
        raise DemoFailed(f"the Spark query failed:\n{errors[-2000:]}")
    return parse_spark_check(output.splitlines()[-1])


# --- the ledger of the whole system


class LedgerListener:
    """Reads the reports of all endpoints on a thread of its own, so that no final report is missed."""

    def __init__(self, context: Context) -> None:
        self._ledger = SystemMonitor(context.connection)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="demo-ledger", daemon=True)
        self._thread.start()

    def _poll(self) -> None:
        while not self._stop.wait(_POLL_S):
            with self._lock:
                self._ledger.poll()

    def rows(self) -> list[LedgerRow]:
        """The rows, once their counts have settled."""
        with self._lock:
            return self._ledger.settle(_SETTLE_S)

    def close(self) -> None:
        """Ends the thread and closes the subscriptions."""
        self._stop.set()
        self._thread.join()
        self._ledger.close()


@contextmanager
def ledger_listener(aeron_dir: str) -> Iterator[LedgerListener]:
    """A listener on the media driver of the demo, with a context of its own that reports nothing."""
    with open_context("standalone", aeron_dir=aeron_dir, media_driver="external") as ctx:
        ctx.report_options = ReportOptions.none()
        listener = LedgerListener(ctx)
        try:
            yield listener
        finally:
            listener.close()


def settled_ledger(context: Context) -> list[LedgerRow]:
    """The settled ledger of the host of a context."""
    with SystemMonitor(context.connection) as ledger:
        return ledger.settle(_SETTLE_S)


def ledger_faults(rows: Sequence[LedgerRow]) -> list[str]:
    """Why the ledger of the whole system is not exact."""
    return [
        f"whole system: stream {row.stream_id}, {row.path} {row.who}: {row.problem or row.verdict}"
        for row in rows
        if row.verdict not in (Verdict.EXACT, Verdict.GONE)
    ]
