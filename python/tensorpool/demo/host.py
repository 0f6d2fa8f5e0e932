"""A host of `tensorpool demo --hosts 2`, as a process: a driver, one end of the bridge, and its endpoints.

The first host has a camera. The second has a viewer that checks every pixel, and a recorder. All that the
hosts know of each other comes over UDP.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

from ..bridge import BridgeAgent, BridgeSettings
from ..bridge.service import JoinedLedgerReply
from ..client import Consumer
from ..context import open as open_context
from ..context.context import Context
from ..errors import FrameOverwritten
from ..recorder.recorder import Recorder
from ..runtime.config import Config
from ..runtime.runner import Runner
from .checks import ledger_faults, settled_ledger
from .processes import (
    DTYPE,
    NSLOTS,
    POOL,
    SHAPE,
    DemoFailed,
    ReportWriter,
    fill_pattern,
    has_command,
    matches_pattern,
)
from .reports import (
    CameraLedger,
    CameraReady,
    HostLedger,
    LabLedger,
    LabSample,
    Mapped,
    ProcessSample,
    Ready,
    RecordedSpan,
    ViewerLedger,
)

SOURCE: Final = 10_000
DEST: Final = 50_000
HostName = Literal["camera", "lab"]
_POLL_S: Final = 0.001
_CONNECT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class HostOptions:
    """Options of the process of a host."""

    name: HostName
    base: str
    recording: str
    channels: dict[str, str]
    seconds: float
    fps: int

    def arguments(self) -> list[str]:
        """The command line of the process."""
        return [json.dumps(asdict(self))]


def _open_host(stack: ExitStack, options: HostOptions) -> tuple[Context, BridgeAgent]:
    """A context with an embedded driver, and a running bridge agent."""
    base = Path(options.base)
    ctx = stack.enter_context(
        open_context(
            "embedded",
            aeron_dir=base / "aeron",
            shm_base_dir=base,
            namespace=options.name,
            announce_period=0.2,
        )
    )
    direction = "send" if options.name == "camera" else "receive"
    mapping = {"source_stream_id": SOURCE, "dest_stream_id": DEST}
    table = {"instance_id": options.name, "direction": direction, "mappings": [mapping], **options.channels}
    settings = Config.load(BridgeSettings, tables={"bridge": table}, environ={})[BridgeSettings]
    agent = BridgeAgent(ctx, settings)
    runner = Runner(agent)
    runner.start()
    stack.callback(runner.close)
    return ctx, agent


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _CONNECT_S
    while not condition() and time.monotonic() < deadline and not has_command():
        time.sleep(_POLL_S)


def run_camera_host(options: HostOptions, reports: ReportWriter) -> None:
    """Publishes frames for the time in the options, or until the parent stops it."""
    with ExitStack() as stack:
        ctx, bridge = _open_host(stack, options)
        camera = stack.enter_context(ctx.producer(SOURCE, pools=[POOL], nslots=NSLOTS, name="demo camera"))

        def is_connected() -> bool:
            row = bridge.sender_rows()[0]
            return bool(row["connected"]) and camera.is_connected and row["epoch"] == str(camera.epoch)

        _wait_for(is_connected)
        reports.send(CameraReady(pid=os.getpid(), lease=None, epoch=str(camera.epoch)))
        sys.stdin.readline()
        started = time.monotonic()
        for number in range(max(1, round(options.seconds * options.fps))):
            if (ahead := started + number / options.fps - time.monotonic()) > 0:
                time.sleep(ahead)
            if has_command():
                sys.stdin.readline()
                break
            with camera.claim(SHAPE, DTYPE) as slot:
                fill_pattern(slot.array, slot.seq)
            if reports.is_due():
                reports.send(ProcessSample(frames=camera.ledger().committed))
        ledger = camera.ledger()
        reports.send(CameraLedger(committed=ledger.committed, balanced=ledger.balanced))
        # The bridge continues to send its ledger until the other end has received it.
        sys.stdin.readline()
        reports.send(_host_ledger(ctx))


class _Viewer:
    """Checks every pixel of every frame."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.checked = self.wrong = 0

    def poll(self) -> int:
        """Checks the frames that have arrived."""
        frames = self.consumer.poll()
        for frame in frames:
            try:
                with frame:
                    is_intact = matches_pattern(frame.array, frame.seq)
            except FrameOverwritten:
                continue
            self.checked += 1
            self.wrong += not is_intact
        return len(frames)


def run_lab_host(options: HostOptions, reports: ReportWriter) -> None:
    """Checks and records frames until the parent sends a line."""
    with ExitStack() as stack:
        ctx, bridge = _open_host(stack, options)
        viewer = _Viewer(stack.enter_context(ctx.consumer(DEST)))
        recorder = ctx.record(options.recording, streams=[DEST], buffer="64MiB", keep_free="256MiB")
        with recorder:
            reports.send(Ready(pid=os.getpid()))
            reported: str | None = ""
            while not has_command():
                row = bridge.receiver_rows()[0]
                epoch = str(viewer.consumer.epoch)
                # Mapped: viewer and recorder have the epoch that belongs to this epoch of the source.
                if (
                    row["destination"] == "attached"
                    and epoch == row["epoch"] == str(recorder.mapped()[DEST])
                    and row["source_epoch"] != reported
                ):
                    reported = row["source_epoch"]
                    reports.send(Mapped(key=str(reported)))
                if not viewer.poll():
                    time.sleep(_POLL_S)
                if reports.is_due():
                    ledger = bridge.receiver_rows()[0]["ledger"]
                    rows = recorder.stats().rows
                    reports.send(LabSample(frames=viewer.checked, ledger=ledger, rows=rows))
            viewer.poll()
            ledger = bridge.receiver_rows()[0]["ledger"]
            host = _host_ledger(ctx)
        if ledger is None:
            raise DemoFailed("the bridge received no ledger of its sender")
        reports.send(_lab_ledger(viewer, ledger, recorder, host))


def _host_ledger(ctx: Context) -> HostLedger:
    """Every path on this host, from the reports of its endpoints."""
    rows = settled_ledger(ctx)
    return HostLedger(paths=[row.to_json() for row in rows], faults=ledger_faults(rows))


def _lab_ledger(
    viewer: _Viewer, ledger: JoinedLedgerReply, recorder: Recorder, host: HostLedger
) -> LabLedger:
    consumer = viewer.consumer.ledger()
    return LabLedger(
        bridge=ledger,
        checked=viewer.checked,
        wrong=viewer.wrong,
        viewer=ViewerLedger(
            received=consumer.received,
            dropped={name: n for name, n in consumer.dropped.items() if n},
            torn=viewer.wrong,
            balanced=consumer.balanced,
            span=consumer.span,
        ),
        recorder=[
            RecordedSpan(recorded.rows, dict(recorded.gaps), recorded.span, recorded.balanced)
            for recorded in recorder.ledger()
        ],
        paths=host.paths,
        faults=host.faults,
    )


if __name__ == "__main__":
    _options = HostOptions(**json.loads(sys.argv[1]))
    (run_camera_host if _options.name == "camera" else run_lab_host)(_options, ReportWriter())
