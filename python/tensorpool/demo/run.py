"""Starts the processes of the demo, shows them at work, kills the camera once, and joins the ledgers."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live

from ..monitor.ledger import LedgerRow
from .checks import (
    CameraEpoch,
    KillReport,
    LedgerListener,
    RecordingCheck,
    ReplayCheck,
    SparkCheck,
    all_faults,
    kill_camera,
    listening,
    look_at,
    missing,
    note_camera_back,
    note_frames_again,
    note_viewers_told,
    pages_of,
    play,
    query,
    whole_faults,
    whole_table,
)
from .output import (
    killed_lines,
    ledger_table,
    live_table,
    played_words,
    recorder_lines,
    recording_table,
    recovered_lines,
    told_line,
)
from .processes import TIMEOUT_S, DemoEnvironment, EarlyStop, early_stop


def run(
    *, seconds: float, fps: int, kill: bool, spark: bool, as_json: bool, report: Path | None = None
) -> bool:
    """True if every frame is accounted for."""
    console = Console(stderr=as_json, highlight=False)
    console.print("starting a driver, a camera, two viewers and a recorder: a process each")
    with early_stop() as asked, DemoEnvironment(seconds, fps, asked, kill=kill) as stage:
        console.print("look on from another terminal:")
        console.print(f"  tensorpool stream watch --aeron-dir {stage.aeron_dir}", style="dim")
        performance = DemoRun(console, stage, asked)
        with Live(console=console, get_renderable=performance.picture, refresh_per_second=4):
            performance.play(seconds, kill=kill)
        with listening(stage.aeron_dir) as whole:
            books, faults = performance.ledgers(whole)
        faults += whole_faults(performance.whole)
        console.print("\nchecking every frame of the recording, and playing it back", style="dim")
        recorded = look_at(stage.recording, stage.stream_id, performance.recovered)
        faults += recorded.faults(books)
        after = DemoResult(ReplayCheck() if asked else play(stage))
        faults += after.played.faults()
        if spark and (lacking := missing()) is not None:
            console.print(f"no Spark query: {lacking}", style="dim")
        elif spark and not asked:
            console.print(
                "a streaming query and a pipeline over the recording, with Spark: takes a while",
                style="dim",
            )
            after.page = report
            page = stage.recording.with_name("report.html") if report is None else report.absolute()
            after.queried = query(stage.recording, stage.environment, page)
            faults += after.queried.faults(*recorded.totals())
    after.whole = performance.whole
    _report(console, books, performance.death, recorded, after, faults, as_json=as_json)
    return not faults


@dataclass(slots=True)
class DemoResult:
    """What was done with the recording."""

    played: ReplayCheck
    queried: SparkCheck | None = None
    page: Path | None = None
    """Where the user wants the report."""
    whole: list[LedgerRow] = field(default_factory=list)


class DemoRun:
    """One run of the play: film, die, come back, film on."""

    def __init__(self, console: Console, stage: DemoEnvironment, asked: EarlyStop) -> None:
        self.death: KillReport | None = None
        self._console = console
        self._stage = stage
        self._asked = asked
        self._epochs: list[str] = []
        self._is_camera_dead = False
        self.whole: list[LedgerRow] = []
        """The ledger of the whole system, as somebody heard it who only listens."""
        self.recovered: list[str] = []
        """What the killed recorder had left open."""

    def picture(self) -> Group:
        """A blank line keeps it apart from the story above."""
        table = live_table(self._stage, self._epochs, is_camera_dead=self._is_camera_dead)
        return Group("", table)

    def play(self, seconds: float, *, kill: bool) -> None:
        self._epochs.append(self._stage.roll())
        if kill:
            begun = time.monotonic()
            self._watch(lambda: time.monotonic() >= begun + seconds / 4 and self._has_recorded())
            if not self._asked:
                self._kill_recorder()
            self._watch(lambda: time.monotonic() >= begun + seconds / 2)
            if not self._asked:
                self._kill(seconds / 2)
        if not self._is_camera_dead:
            self._watch(lambda: self._stage.camera.heard("ledger") is not None)

    def _watch(self, is_over: Callable[[], bool]) -> None:
        """Until then, or until the user asks for the end."""
        while not self._asked and not is_over():
            time.sleep(0.05)
            for player in self._stage.everyone():
                player.check_alive()

    def _kill(self, seconds_left: float) -> None:
        stage = self._stage
        self.death = death = kill_camera(stage)
        self._is_camera_dead = True
        self._say(*killed_lines(death))
        note_viewers_told(death, stage)
        self._say(told_line(death))
        if self._asked:
            return
        stage.restart_camera(seconds_left)
        note_camera_back(death, stage)
        self._is_camera_dead = False
        self._epochs.append(stage.roll())
        note_frames_again(death, stage)
        self._say(*recovered_lines(death))

    def _kill_recorder(self) -> None:
        stage = self._stage
        killed = stage.tape.pid
        stage.tape.kill()
        self.recovered = stage.restart_tape()
        # Frames flow all the while: what it missed is a gap, from where it was to where it goes on.
        stage.tape.wait_for(f"mapped-{self._epochs[-1]}", TIMEOUT_S)
        self._watch(self._has_recorded)
        self._say(*recorder_lines(killed, stage.tape.pid, self.recovered))

    def _has_recorded(self) -> bool:
        return bool(self._stage.tape.sample().get("frames", 0) > 0)

    def _say(self, *lines: Any) -> None:
        for line in lines:
            self._console.print(line)

    def ledgers(self, whole: LedgerListener) -> tuple[list[CameraEpoch], list[str]]:
        """Ends it in good order: the camera first, and viewers when they have drained the stream."""
        stage = self._stage
        filmed = None
        if not self._is_camera_dead:
            if stage.camera.heard("ledger") is None:
                stage.camera.tell("stop")
            filmed = stage.camera.wait_for("ledger", TIMEOUT_S)
        for viewer in stage.viewers:
            viewer.tell()
        seen = {viewer.name: viewer.wait_for("ledger", TIMEOUT_S) for viewer in stage.viewers}
        # The recorder is asked, so it is asked before it ends.
        self.whole = whole.rows()
        stage.tape.tell()
        stage.tape.wait_for("ledger", TIMEOUT_S)
        books = []
        if (death := self.death) is not None:
            pages = pages_of(death.epoch, seen)
            killed = CameraEpoch(
                death.epoch,
                death.ring.committed,
                pages,
                was_killed=True,
                half_written=death.ring.half_written,
            )
            books.append(killed)
        if filmed is not None:
            epoch, counts = self._epochs[-1], ("committed", "published", "unpublished")
            committed, published, unpublished = (filmed[count] for count in counts)
            pages = pages_of(epoch, seen)
            books.append(CameraEpoch(epoch, committed, pages, published=published, unpublished=unpublished))
        return books, all_faults(books, seen)


def _report(
    console: Console,
    books: list[CameraEpoch],
    death: KillReport | None,
    recorded: RecordingCheck,
    after: DemoResult,
    faults: list[str],
    *,
    as_json: bool,
) -> None:
    if as_json:
        result = {
            "epochs": [book.as_json() for book in books],
            "recovery": None if death is None else death.as_json(),
            "recording": recorded.as_json(),
            "replay": after.played.as_json(),
            "spark": None if after.queried is None else after.queried.as_json(),
            "whole_system": [row.to_json() for row in after.whole],
            "faults": faults,
        }
        json.dump(result, sys.stdout, indent=2)
        sys.stdout.write("\n")
        return
    console.print()
    console.print(ledger_table(books))
    console.print(recording_table(recorded))
    console.print()
    console.print(whole_table(after.whole))
    console.print()
    for fault in faults:
        console.print(f"✗ {fault}", style="bold red")
    if not faults:
        console.print("✓ every frame is accounted for, none was torn", style="bold green")
        console.print("✓ the ledger of the whole system is exact", style="bold green")
        console.print("✓ the recording was verified: every checksum, every pixel", style="bold green")
        if after.played.played:
            console.print(f"✓ {played_words(after.played)}", style="bold green")
        else:
            console.print("  it was ended early: nothing was played back", style="dim")
        if (queried := after.queried) is not None:
            console.print(f"✓ {queried}", style="bold green")
            console.print(f"✓ {queried.tables_words()}", style="bold green")
            kept = (
                f"the page is {after.page}" if after.page else "keep the page: tensorpool demo --report FILE"
            )
            console.print(f"  {kept}", style="dim")
