"""The joined ledger: every frame that a camera committed, and what became of it at each viewer. Pure.

The camera's death on purpose: what it had committed, who noticed when, and how all went on.

The recording played back by another process, and each frame held against its checksum on disk.

The recording as Spark sees it: counted and checked by a streaming query, and taken to tables by a
pipeline.

What is in the recording at the end: looked at file by file, and held against what was filmed.

The ledger of the whole system, at the end of a demo: what everybody told, joined by a mere listener.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from rich.table import Table

from .. import _native, recording
from ..client import ReportOptions
from ..context import Context
from ..context import open as open_context
from ..monitor.ledger import LedgerRow, Verdict
from ..monitor.listener import SystemMonitor
from ..shm.epoch_files import HEADER_RING
from ..shm.slots import read_ring
from .processes import NSLOTS, TIMEOUT_S, ChildProcess, DemoEnvironment, DemoFailed, matches_pattern

# A camera writes one frame at a time: between its commit and its descriptor there is one at most.
_MOST_IN_FLIGHT = 1


@dataclass(frozen=True, slots=True)
class ViewerLedger:
    """One epoch at one viewer."""

    received: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    torn: int = 0
    balanced: bool = True

    @property
    def heard(self) -> int:
        """Frames that the viewer knows of."""
        return self.received + sum(self.dropped.values())


@dataclass(frozen=True, slots=True)
class CameraEpoch:
    """One life of the camera. Killed, it told nothing: `committed` is what its ring says."""

    epoch: str
    committed: int
    pages: dict[str, ViewerLedger]
    was_killed: bool = False
    half_written: int = 0
    published: int | None = None
    unpublished: dict[str, int] = field(default_factory=dict)

    def in_flight(self, page: ViewerLedger) -> int:
        """Committed, and the descriptor had not left when the camera died."""
        return self.committed - page.heard

    def faults(self) -> list[str]:
        found = []
        if self.published is not None and self.committed != self.published + sum(self.unpublished.values()):
            found.append("the camera's frames do not add up")
        most = _MOST_IN_FLIGHT if self.was_killed else 0
        for name, page in self.pages.items():
            if page.torn:
                found.append(f"the {name} saw {page.torn} torn frames")
            if not page.balanced:
                found.append(f"the {name}'s frames do not add up")
            if not 0 <= self.in_flight(page) <= most:
                found.append(f"the {name} accounts for {page.heard} of {self.committed} frames")
        return [f"epoch {self.epoch}: {fault}" for fault in found]

    def as_json(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "committed": self.committed,
            "committed_as_told_by": "the header ring" if self.was_killed else "the camera",
            "half_written": self.half_written,
            "published": self.published,
            "unpublished": self.unpublished,
            "viewers": {
                name: {
                    "received": page.received,
                    "dropped": page.dropped,
                    "in_flight": self.in_flight(page),
                    "torn": page.torn,
                }
                for name, page in self.pages.items()
            },
        }


def pages_of(epoch: str, ledgers: dict[str, dict[str, Any]]) -> dict[str, ViewerLedger]:
    """What each viewer wrote about one epoch; nothing heard is a page too."""
    found = {}
    for name, ledger in ledgers.items():
        one = next((page for page in ledger["pages"] if page["epoch"] == epoch), None)
        found[name] = (
            ViewerLedger()
            if one is None
            else ViewerLedger(one["received"], one["dropped"], one["torn"], one["balanced"])
        )
    return found


def all_faults(books: Sequence[CameraEpoch], ledgers: dict[str, dict[str, Any]]) -> list[str]:
    """Everything that does not add up, over all epochs."""
    found = [fault for book in books for fault in book.faults()]
    for before, after in pairwise(books):
        if int(after.epoch) <= int(before.epoch):
            found.append(f"epoch {after.epoch} is not above {before.epoch}")
    known = {book.epoch for book in books}
    for name, ledger in ledgers.items():
        strange = [page["epoch"] for page in ledger["pages"] if page["epoch"] not in known]
        if strange:
            found.append(f"the {name} heard of epochs that nobody filmed: {', '.join(strange)}")
    return found


# How long after the last frame a viewer may still get its first.
_LAST_CALL_S = 1.0


@dataclass(frozen=True, slots=True)
class RingCount:
    """The truth about a dead writer, from the ring that it left."""

    committed: int
    half_written: int
    """Begun and never committed: no reader ever saw it."""


def count_ring(descriptor: int) -> RingCount:
    """Sequences start at 0 and leave none out, so that the newest says how many there were."""
    ring = read_ring(descriptor, NSLOTS, None)
    if problems := [problem for slot in ring.slots for problem in slot.problems]:
        raise DemoFailed(f"the ring of the killed camera is broken: {'; '.join(problems)}")
    newest = ring.newest_seq
    return RingCount(0 if newest is None else newest + 1, ring.count("in_progress"))


@dataclass(slots=True)
class KillReport:
    """One kill and what followed it. Times are from the kill on."""

    pid: int
    lease: str
    epoch: str
    lease_s: float
    """How long the lease would have lived on, had nobody noticed: its grace."""
    killed_ns: int
    ring: RingCount
    noticed_ms: float
    reason: str
    viewer_leases: dict[str, str | None]
    next_pid: int | None = None
    next_lease: str | None = None
    next_epoch: str | None = None
    back_ms: float | None = None
    told_ms: dict[str, float] = field(default_factory=dict)
    frames_again_ms: dict[str, float] = field(default_factory=dict)
    leases_kept: bool = False

    def after_ms(self, at_ns: int) -> float:
        return (at_ns - self.killed_ns) / 1e6

    def as_json(self) -> dict[str, Any]:
        return {
            "killed_process": self.pid,
            "lease_grace_s": self.lease_s,
            "noticed_by_driver_ms": self.noticed_ms,
            "driver_says": self.reason,
            "viewers_told_ms": self.told_ms,
            "camera_back_ms": self.back_ms,
            "viewers_have_frames_again_ms": self.frames_again_ms,
            "viewers_kept_their_leases": self.leases_kept,
            "camera_lease": [self.lease, self.next_lease],
            "epoch": [self.epoch, self.next_epoch],
        }


def kill_camera(stage: DemoEnvironment) -> KillReport:
    """Kills the camera and waits until the driver has noticed."""
    camera = stage.camera
    ready = camera.wait_for("ready", TIMEOUT_S)
    # Opened before: the driver keeps a superseded directory for the grace, and this machine may stall.
    descriptor = os.open(_directory(stage.driver, ready["epoch"]) / HEADER_RING, os.O_RDONLY | os.O_CLOEXEC)
    try:
        killed_ns = time.monotonic_ns()
        camera.kill()
        ring = count_ring(descriptor)
    finally:
        os.close(descriptor)
    ended = stage.driver.wait_for(f"ended-{ready['lease']}", TIMEOUT_S)
    return KillReport(
        pid=camera.pid,
        lease=ready["lease"],
        epoch=ready["epoch"],
        lease_s=stage.driver.wait_for("ready", TIMEOUT_S)["lease_s"],
        killed_ns=killed_ns,
        ring=ring,
        noticed_ms=(ended["noticed_ns"] - killed_ns) / 1e6,
        reason=ended["words"] or ended["reason"],
        viewer_leases=_leases(stage),
    )


def _directory(driver: ChildProcess, epoch: str) -> Path:
    deadline = time.monotonic() + TIMEOUT_S
    while (said := driver.sample()).get("epoch") != epoch:
        if time.monotonic() > deadline:
            raise DemoFailed(f"the driver says nothing of epoch {epoch}")
        time.sleep(0.01)
    return Path(said["directory"])


def note_viewers_told(death: KillReport, stage: DemoEnvironment) -> None:
    for viewer in stage.viewers:
        told = viewer.wait_for(f"unmapped-{death.epoch}", TIMEOUT_S)
        death.told_ms[viewer.name] = death.after_ms(told["happened_ns"])


def note_camera_back(death: KillReport, stage: DemoEnvironment) -> None:
    ready = stage.camera.wait_for("ready", TIMEOUT_S)
    death.next_pid, death.next_lease = ready["pid"], ready["lease"]
    death.next_epoch, death.back_ms = ready["epoch"], death.after_ms(ready["at_ns"])


def note_frames_again(death: KillReport, stage: DemoEnvironment) -> None:
    for viewer in stage.viewers:
        if (first := _first_frame(viewer, stage.camera, death.next_epoch)) is not None:
            death.frames_again_ms[viewer.name] = death.after_ms(first["at_ns"])
    death.leases_kept = death.viewer_leases == _leases(stage)


def _first_frame(viewer: ChildProcess, camera: ChildProcess, epoch: str | None) -> dict[str, Any] | None:
    """Its first word of the new epoch; none if the camera has filmed all that it had to, and lost it."""
    deadline = time.monotonic() + TIMEOUT_S
    while (first := viewer.heard(f"first-{epoch}")) is None and time.monotonic() < deadline:
        viewer.check_alive()
        if camera.heard("ledger") is not None:
            deadline = min(deadline, time.monotonic() + _LAST_CALL_S)
        time.sleep(0.005)
    return first


def _leases(stage: DemoEnvironment) -> dict[str, str | None]:
    """Who holds which lease, as the viewers say."""
    return {viewer.name: viewer.sample().get("lease") for viewer in stage.viewers}


REPLAY_SPEED: Final = 4.0
REPLAY_NSLOTS: Final = 32
"""Deep enough that a viewer which is held up for a moment misses nothing."""
REPLAY_STREAM_ID: Final = 10_001


@dataclass(slots=True)
class ReplayCheck:
    """What came out of the replay."""

    played: int = 0
    equal: int = 0
    wrong: int = 0
    missed: int = 0
    """Overwritten before they were looked at."""

    def faults(self) -> list[str]:
        found = []
        if self.wrong:
            found.append(f"the replay has {self.wrong} frames that are not what was recorded")
        if self.equal + self.wrong + self.missed != self.played:
            seen = self.equal + self.wrong + self.missed
            found.append(f"the replay's viewer accounts for {seen} of {self.played} frames")
        return found

    def as_json(self) -> dict[str, Any]:
        return {"played": self.played, "equal": self.equal, "wrong": self.wrong, "missed": self.missed}


def play(stage: DemoEnvironment) -> ReplayCheck:
    """Replays the recording into another stream, and compares."""
    found = ReplayCheck()
    with recording.open(stage.recording) as opened:
        if stage.stream_id not in opened.streams:
            return found
        sums = [frame.crc32c for frame in opened.frames(stage.stream_id)]
    if not sums:
        return found
    role = replace(stage.role, stream_id=REPLAY_STREAM_ID)
    with role.attach() as ctx, ctx.consumer(REPLAY_STREAM_ID) as viewer:
        player = stage.start_player()
        player.tell()
        while (frame := viewer.receive_or_none(0.05)) is not None or player.heard("ledger") is None:
            player.check_alive()
            if frame is None:
                continue
            # A replay numbers its frames from 0, in the order of the recording.
            is_equal = _native.crc32c(frame.array.reshape(-1).view("uint8")) == sums[frame.seq]
            if frame.valid():
                found.equal += is_equal
                found.wrong += not is_equal
        ledger = viewer.ledger()
        found.played = player.wait_for("ledger", TIMEOUT_S)["frames"]
        found.missed = ledger.span - found.equal - found.wrong
        player.tell()
    return found


_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class SparkCheck:
    frames: int
    equal: int
    tables: dict[str, Any]
    """What the pipeline's gold table counts: `frames`, `drops` by reason, `rejected`; rows of `silver`."""

    def __str__(self) -> str:
        return f"a streaming query of Spark: {self.frames:,} frames, {self.equal:,} checksums equal"

    def tables_words(self) -> str:
        drops = ", ".join(f"{reason} {count:,}" for reason, count in sorted(self.tables["drops"].items()))
        missing = f"missing: {drops or 'none'}; as in the ledger"
        return f"a pipeline to gold tables and a report page: {self.tables['frames']:,} frames, {missing}"

    def faults(self, rows: int, gaps: Mapping[str, int]) -> list[str]:
        if self.frames != rows:
            return [f"Spark counts {self.frames} frames of {rows} that were recorded"]
        if self.equal != rows:
            return [f"Spark finds {rows - self.equal} frames with another checksum than was recorded"]
        found = self.tables
        if (found["frames"], found["silver"], found["rejected"]) != (rows, rows, 0):
            return [f"the gold table has {found['frames']} frames and {found['rejected']} rejects, of {rows}"]
        missing = {reason: count for reason, count in gaps.items() if count}
        if found["drops"] != missing:
            return [f"the gold table counts drops {found['drops']}, and the ledger {missing}"]
        page = found["report"]
        if (page["frames"], page["drops"]) != (rows, missing):
            return [f"the report has {page['frames']} frames and drops {page['drops']}, of {rows}, {missing}"]
        return [f"the report: {fault}" for fault in page["faults"]]

    def as_json(self) -> dict[str, Any]:
        return {"frames": self.frames, "equal": self.equal, "tables": self.tables}


def missing() -> str | None:
    """What Spark lacks here."""
    if importlib.util.find_spec("pyspark") is None:
        return "pyspark is not installed: pip install 'aeron-tensorpool[spark]'"
    if shutil.which("java") is None:
        return "Java (17 or newer) is not installed"
    return None


def query(root: Path, environment: Mapping[str, str], page: Path) -> SparkCheck:
    done = subprocess.run(
        [sys.executable, "-m", "tensorpool.demo.spark_job", str(root), str(page)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
        # A Ctrl-C is the director's to handle.
        start_new_session=True,
    )
    if done.returncode != 0:
        raise DemoFailed(f"the Spark query failed:\n{done.stderr[-2000:]}")
    return SparkCheck(**json.loads(done.stdout.splitlines()[-1]))


# Looking at every pixel takes its time; of a long demo the beginning has to do.
_MOST_LOOKED_AT = 5_000


@dataclass(frozen=True, slots=True)
class RecordedEpoch:
    """One epoch: span = rows + gaps."""

    epoch: str
    first_seq: int
    span: int
    rows: int
    gaps: dict[str, int]
    balanced: bool


@dataclass(slots=True)
class RecordingCheck:
    """The recording as a reader finds it."""

    pages: list[RecordedEpoch] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    torn: int = 0
    size_bytes: int = 0
    segments: int = 0
    recovered: list[str] = field(default_factory=list)
    """What the killed recorder had left open, as the next one found it."""

    def faults(self, books: Sequence[CameraEpoch]) -> Iterator[str]:
        """Nothing if all is well: every frame that was filmed is a row or in a gap, and every row whole."""
        yield from (f"the recording: {problem}" for problem in self.problems)
        if self.torn:
            yield f"the recording has {self.torn} torn frames"
        filmed = {book.epoch: book for book in books}
        for page in self.pages:
            if not page.balanced or "unexplained" in page.gaps:
                yield f"the recording of epoch {page.epoch} does not add up"
            book = filmed.get(page.epoch)
            if book is None:
                yield f"the recording has an epoch that nobody filmed: {page.epoch}"
            # A killed camera may have committed a frame that it never told anyone of.
            elif not 0 <= book.committed - (page.first_seq + page.span) <= int(book.was_killed):
                yield f"epoch {page.epoch}: {book.committed} frames, and the recording ends elsewhere"

    def totals(self) -> tuple[int, dict[str, int]]:
        """Rows, and what is missing by reason, of all epochs."""
        gaps: Counter[str] = Counter()
        for page in self.pages:
            gaps.update(page.gaps)
        return sum(page.rows for page in self.pages), dict(gaps)

    def as_json(self) -> dict[str, Any]:
        return {
            "epochs": [
                {"epoch": one.epoch, "span": one.span, "rows": one.rows, "gaps": one.gaps}
                for one in self.pages
            ],
            "segments": self.segments,
            "bytes": self.size_bytes,
            "torn": self.torn,
            "problems": self.problems,
            "recovered": self.recovered,
        }


def look_at(root: Path, stream_id: int, recovered: list[str]) -> RecordingCheck:
    """Checks every file, every checksum and every pixel."""
    from .. import recording

    found = RecordingCheck(recovered=recovered)
    checked = recording.verify(root)
    found.problems = [str(one) for one in checked.problems]
    found.size_bytes, found.segments = checked.size_bytes, checked.segments
    with recording.open(root) as opened:
        if stream_id not in opened.streams:
            return found
        for one in opened.ledger(stream_id):
            found.pages.append(
                RecordedEpoch(str(one.epoch), one.first_seq, one.span, one.rows, one.gaps, one.balanced)
            )
        for number, frame in enumerate(opened.frames(stream_id)):
            if number >= _MOST_LOOKED_AT:
                break
            found.torn += not (frame.valid() and matches_pattern(frame.array, frame.seq))
    return found


_TURN_S = 0.02
_SETTLE_S = 20.0


class LedgerListener:
    """Listens on a thread of its own, so that no last word is missed while others are waited for."""

    def __init__(self, context: Context) -> None:
        self._live = SystemMonitor(context.connection)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="whole-ledger", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while not self._stop.wait(_TURN_S):
            with self._lock:
                self._live.poll()

    def rows(self) -> list[LedgerRow]:
        """When the figures have settled."""
        with self._lock:
            return self._live.settle(_SETTLE_S)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._live.close()


@contextmanager
def listening(aeron_dir: str) -> Iterator[LedgerListener]:
    """On the media driver of a demo, without taking part in it."""
    with open_context("standalone", aeron_dir=aeron_dir, media_driver="external") as ctx:
        ctx._reports = ReportOptions(latency=False, counters=False, accounts=False)
        whole = LedgerListener(ctx)
        try:
            yield whole
        finally:
            whole.close()


def of_host(context: Context) -> list[LedgerRow]:
    """By one that takes part there."""
    with SystemMonitor(context.connection) as ledger:
        return ledger.settle(_SETTLE_S)


def whole_faults(rows: Sequence[LedgerRow]) -> list[str]:
    """Why it is not exact."""
    fine = (Verdict.EXACT, Verdict.GONE)
    return [
        f"whole system: stream {row.stream_id}, {row.path} {row.who}: {row.problem or row.verdict}"
        for row in rows
        if row.verdict not in fine
    ]


def whole_table(rows: Sequence[LedgerRow]) -> Table:
    table = Table(title="the whole system: published = delivered + dropped", title_justify="left", box=None)
    for name in ("stream", "path", "who", "published", "delivered", "dropped", ""):
        table.add_column(name, justify="right" if name in ("stream", "published", "delivered") else "left")
    for row in rows:
        dropped = ", ".join(f"{reason} {count:,}" for reason, count in sorted(row.dropped.items()) if count)
        published, delivered = f"{row.published:,}", f"{row.delivered:,}"
        table.add_row(str(row.stream_id), row.path, row.who, published, delivered, dropped, str(row.verdict))
    return table
