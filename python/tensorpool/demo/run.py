"""One run of the demo on one host: frames, the kill of recorder and camera, the checks, and the result."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from ..monitor.ledger import LedgerRow
from .checks import (
    CameraEpoch,
    KillReport,
    LedgerListener,
    RecordingCheck,
    ReplayCheck,
    SparkCheck,
    check_recording,
    check_replay,
    check_with_spark,
    find_faults,
    kill_camera,
    ledger_faults,
    ledger_listener,
    spark_fault,
    viewer_ledgers,
    wait_restarted,
    wait_resumed,
    wait_unmapped,
)
from .output import (
    killed_lines,
    ledger_table,
    live_table,
    recorder_lines,
    recording_table,
    recovered_lines,
    replay_text,
    system_table,
    unmapped_line,
)
from .processes import TIMEOUT_S, DemoEnvironment, DemoTimeout, EarlyStop, console_process, early_stop
from .reports import CameraLedger, Mapped, RecorderBalance, ViewerReport

_GOOD = "bold green"
_DIM = "dim"


@dataclass(slots=True)
class DemoResult:
    """The ledgers and checks of a demo."""

    epochs: list[CameraEpoch]
    recording: RecordingCheck
    replay: ReplayCheck
    kill: KillReport | None = None
    spark: SparkCheck | None = None
    report_page: Path | None = None
    """Where the user keeps the report page."""
    system: list[LedgerRow] = field(default_factory=list)
    """The ledger of the whole system."""
    faults: list[str] = field(default_factory=list)


def run(
    *,
    seconds: float,
    fps: int,
    kill: bool,
    spark: bool,
    json_output: bool,
    report: Path | None = None,
    has_console: bool = False,
    timeout_s: float = TIMEOUT_S,
    store: str = "disk",
) -> bool:
    """Runs the demo. True if every frame is accounted for.

    `has_console` shows it in a browser. `store`: where Spark's tables are: `disk`, `s3` for a server of the
    demo's own, or a URI. A step that takes longer than `timeout_s` is a fault; the ledger is printed with
    what is known without it.
    """
    screen = Console(stderr=json_output, highlight=False, markup=False)
    screen.print("starting a driver, a camera, two viewers and a recorder: a process each")
    with (
        early_stop() as stop,
        DemoEnvironment(seconds, fps, stop, kill=kill, timeout_s=timeout_s) as demo,
        console_process(demo) if has_console else nullcontext("") as address,
    ):
        screen.print("watch it from another terminal:")
        screen.print(f"  tensorpool stream watch --aeron-dir {demo.aeron_dir}", style=_DIM)
        if address:
            screen.print("or in a browser, until the demo ends:")
            screen.print(f"  {address}", style="bold", soft_wrap=True)
        demo_run = DemoRun(screen, demo, stop)
        with Live(console=screen, get_renderable=demo_run.screen, refresh_per_second=4):
            demo_run.publish(seconds, kill=kill)
        with ledger_listener(demo.aeron_dir) as listener:
            epochs, faults = demo_run.collect_ledgers(listener)
        faults = [*demo_run.timeouts, *faults]
        faults += ledger_faults(demo_run.system)
        screen.print("\nchecking every frame of the recording, and replaying it", style=_DIM)
        recording = check_recording(demo.recording, demo.stream_id, demo_run.recovered)
        faults += recording.faults(epochs)
        replay = ReplayCheck()
        if not stop and not demo_run.timeouts:
            with collecting(faults):
                replay = check_replay(demo)
        faults += replay.faults()
        result = DemoResult(epochs, recording, replay, demo_run.kill, system=demo_run.system, faults=faults)
        if spark and (fault := spark_fault()) is not None:
            screen.print(f"no Spark query: {fault}", style=_DIM)
        elif spark and not stop and not demo_run.timeouts:
            screen.print(
                "a streaming query and a pipeline over the recording, with Spark: takes a while", style=_DIM
            )
            result.report_page = report
            page = demo.recording.with_name("report.html") if report is None else report.absolute()
            with collecting(faults):
                result.spark = check_with_spark(
                    demo.recording, demo.variables, page, timeout_s=timeout_s, store=store
                )
                faults += result.spark.faults(*recording.totals())
    if json_output:
        _print_json(result)
    else:
        print_result(screen, result)
    return not faults


@contextmanager
def collecting(faults: list[str]) -> Iterator[None]:
    """Adds a step that takes too long to the faults, and continues behind the block."""
    try:
        yield
    except DemoTimeout as error:
        faults.append(str(error))


class DemoRun:
    """The part of the demo in which the camera publishes: two kills, two recoveries, and the ledgers."""

    def __init__(self, console: Console, demo: DemoEnvironment, stop: EarlyStop) -> None:
        self.kill: KillReport | None = None
        self._console = console
        self._demo = demo
        self._stop = stop
        self._epochs: list[str] = []
        self._is_camera_dead = False
        self.system: list[LedgerRow] = []
        """The ledger of the whole system, read from the reports of all endpoints."""
        self.timeouts: list[str] = []
        """Steps that took too long."""
        self.recovered: list[str] = []
        """Segments that the killed recorder had left open."""

    def screen(self) -> Group:
        """The live table, below a blank line."""
        return Group("", live_table(self._demo, self._epochs, is_camera_dead=self._is_camera_dead))

    def publish(self, seconds: float, *, kill: bool) -> None:
        """Lets the camera publish; with `kill`, kills the recorder after a quarter and the camera at half."""
        with collecting(self.timeouts):
            self._publish(seconds, kill=kill)

    def _publish(self, seconds: float, *, kill: bool) -> None:
        self._epochs.append(self._demo.start_publishing())
        if kill:
            started = time.monotonic()
            self._wait(lambda: time.monotonic() >= started + seconds / 4 and self._has_recorded())
            if not self._stop:
                self._kill_recorder()
            self._wait(lambda: time.monotonic() >= started + seconds / 2)
            if not self._stop:
                self._kill_camera(seconds / 2)
        if not self._is_camera_dead:
            self._wait(lambda: self._demo.camera.report(CameraLedger) is not None)

    def _wait(self, is_over: Callable[[], bool]) -> None:
        """Waits for a condition, or until the user stops the demo."""
        while not self._stop and not is_over():
            time.sleep(0.05)
            for process in self._demo.processes():
                process.check_alive()

    def _kill_camera(self, seconds_left: float) -> None:
        demo = self._demo
        self.kill = kill = kill_camera(demo)
        self._is_camera_dead = True
        self._print(*killed_lines(kill))
        wait_unmapped(kill, demo)
        self._print(unmapped_line(kill))
        if self._stop:
            return
        demo.restart_camera(seconds_left)
        wait_restarted(kill, demo)
        self._is_camera_dead = False
        self._epochs.append(demo.start_publishing())
        wait_resumed(kill, demo)
        self._print(*recovered_lines(kill))

    def _kill_recorder(self) -> None:
        demo = self._demo
        killed_pid = demo.recorder.pid
        demo.recorder.kill()
        self.recovered = demo.restart_recorder()
        # The camera publishes meanwhile: the frames between the two recorders are a gap in the recording.
        demo.recorder.wait_for(Mapped, demo.timeout_s, key=self._epochs[-1])
        self._wait(self._has_recorded)
        self._print(*recorder_lines(killed_pid, demo.recorder.pid, self.recovered))

    def _has_recorded(self) -> bool:
        return self._demo.recorder.sample().frames > 0

    def _print(self, *lines: Text) -> None:
        for line in lines:
            self._console.print(line)

    def collect_ledgers(self, listener: LedgerListener) -> tuple[list[CameraEpoch], list[str]]:
        """Ends camera, viewers and recorder, in this order. Returns their joined ledgers and the faults."""
        demo = self._demo
        camera = None
        if not self._is_camera_dead:
            if demo.camera.report(CameraLedger) is None:
                demo.camera.send("stop")
            with collecting(self.timeouts):
                camera = demo.camera.wait_for(CameraLedger, demo.timeout_s)
        for viewer in demo.viewers:
            viewer.send()
        reports: dict[str, ViewerReport] = {}
        for viewer in demo.viewers:
            with collecting(self.timeouts):
                reports[viewer.name] = viewer.wait_for(ViewerReport, demo.timeout_s)
        # The ledger of the recorder is read from its service: it has to run for that.
        self.system = listener.rows()
        demo.recorder.send()
        with collecting(self.timeouts):
            demo.recorder.wait_for(RecorderBalance, demo.timeout_s)
        epochs = []
        if (kill := self.kill) is not None:
            killed = CameraEpoch(
                kill.epoch,
                kill.ring.committed,
                viewer_ledgers(kill.epoch, reports),
                was_killed=True,
                half_written=kill.ring.half_written,
            )
            epochs.append(killed)
        if camera is not None and self._epochs:
            last = CameraEpoch(
                self._epochs[-1],
                camera.committed,
                viewer_ledgers(self._epochs[-1], reports),
                published=camera.published,
                unpublished=camera.unpublished,
            )
            epochs.append(last)
        return epochs, find_faults(epochs, reports)


def _print_json(result: DemoResult) -> None:
    output = {
        "epochs": [epoch.to_json() for epoch in result.epochs],
        "recovery": None if result.kill is None else result.kill.to_json(),
        "recording": result.recording.to_json(),
        "replay": result.replay.to_json(),
        "spark": None if result.spark is None else result.spark.to_json(),
        "whole_system": [row.to_json() for row in result.system],
        "faults": result.faults,
    }
    json.dump(output, sys.stdout, indent=2)
    sys.stdout.write("\n")


def print_result(console: Console, result: DemoResult) -> None:
    """Prints the ledgers, the faults, and the checks that succeeded."""
    console.print()
    console.print(ledger_table(result.epochs))
    console.print(recording_table(result.recording))
    console.print()
    console.print(system_table(result.system))
    console.print()
    for fault in result.faults:
        console.print(f"✗ {fault}", style="bold red")
    if result.faults:
        return
    console.print("✓ every frame is accounted for, none was torn", style=_GOOD)
    console.print("✓ the ledger of the whole system is exact", style=_GOOD)
    console.print("✓ the recording was verified: every checksum, every pixel", style=_GOOD)
    if result.replay.replayed:
        console.print(f"✓ {replay_text(result.replay)}", style=_GOOD)
    else:
        console.print("  the demo was ended early: nothing was replayed", style=_DIM)
    if result.spark is not None:
        console.print(f"✓ {result.spark}", style=_GOOD)
        console.print(f"✓ {result.spark.pipeline_text()}", style=_GOOD)
        page = result.report_page
        hint = f"the page is {page}" if page else "to keep the page: tensorpool demo --report FILE"
        console.print(f"  {hint}", style=_DIM)
