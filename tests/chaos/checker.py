"""The checker of all scenarios: counts what was done, and collects what must not be.

A scenario passes when no consumer received a frame that is not the published one, every ledger adds up, and
nothing is left when it has ended.
"""

from __future__ import annotations

import getpass
import os
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.tally import Counts
from tests.leaks import Snapshot, remaining, settle

LEFTOVER_TIMEOUT_S = 30.0
_PROOFS = (
    ("producer started", "frames published"),
    ("consumer started", "frames checked"),
    ("recorder started", "recorded frames checked"),
)
"""A scenario that started the one and counted nothing of the other stood still, and proves nothing."""


def _own_directories() -> re.Pattern[str]:
    """Names in /dev/shm that a run gives to its directories, and those that programs have by default.

    Other programs start and end on the machine within two hours; what they leave is not a finding.
    """
    user = re.escape(getpass.getuser())
    return re.compile(rf"(?:tensorpool|aeron)-(?:chaos-{os.getpid()}-.*|{user})$")


@dataclass
class Verdict:
    """The result of one scenario."""

    scenario: str
    seed: int
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    logs: dict[str, str] = field(default_factory=dict)
    """The end of what each role has written to stderr, if there are findings."""
    skipped: str | None = None
    """Why the scenario could not run here."""

    @property
    def ok(self) -> bool:
        """Whether it ran and found nothing."""
        return not self.findings and self.skipped is None

    def to_json(self) -> dict[str, Any]:
        """The result for programs."""
        return {
            "scenario": self.scenario, "seed": self.seed, "seconds": round(self.seconds, 1),
            "counts": dict(self.counts), "findings": self.findings, "skipped": self.skipped, "ok": self.ok,
            "logs": self.logs,
        }  # fmt: skip


class Checker:
    """Watches one scenario from its start to its end."""

    def __init__(self, scenario: str, seed: int) -> None:
        self.verdict = Verdict(scenario, seed)
        self._before = Snapshot.take()
        self._started = time.monotonic()

    def count(self, what: str, number: int = 1) -> None:
        """Counts something that was done or seen."""
        self.verdict.counts[what] += number

    def expect(self, holds: bool, finding: str) -> None:
        """Adds a finding unless something holds."""
        if not holds and len(self.verdict.findings) < 50:
            self.verdict.findings.append(finding)

    def program(
        self, role: str, counts: Counts, report: dict[str, Any] | None, *, is_exposed: bool = False
    ) -> None:
        """Counts what a program did, and checks what it says at its end. A killed one says nothing.

        `is_exposed`: others changed the payloads it received, so that its torn frames are only counted.
        """
        self.expect(
            is_exposed or not counts.torn,
            f"a {role} received frames that nobody published: {counts}, {report}",
        )
        self.count("frames checked", counts.checked - counts.torn)
        self.count("frames published", counts.published)
        if is_exposed:
            self.count("frames that a stray write had changed", counts.torn)
        if report is not None:
            self.expect(report.get("balanced", True), f"the ledger of a {role} does not add up: {report}")

    def recording(self, root: Path) -> None:
        """Checks a recording: every byte is as written, every ledger adds up, every word proves its frame."""
        from tensorpool import recording
        from tests.chaos.pattern import is_frame

        if not root.exists():
            return
        recording.repair(root)
        found = recording.verify(root)
        self.expect(found.ok, f"{root.name}: {[str(problem) for problem in found.problems[:3]]}")
        for ledger in found.ledgers:
            self.expect(ledger.balanced, f"{root.name}: {ledger}")
            unexplained = ledger.gaps.get("unexplained", 0)
            self.expect(not unexplained, f"{root.name}: {unexplained} unexplained: {ledger}")
        with recording.open(root) as opened:
            for stream in opened.streams:
                for frame in opened.frames(stream):
                    self.count("recorded frames checked")
                    self.expect(
                        is_frame(frame.array, frame.seq),
                        f"{root.name}: frame {frame.epoch}:{frame.seq} is another one",
                    )

    def end(self, *directories: Path) -> Verdict:
        """The verdict, after everything has been closed: nothing may be left in these directories."""
        for started, proof in _PROOFS:
            stood_still = self.verdict.counts[started] and not self.verdict.counts[proof]
            self.expect(self.verdict.skipped is not None or not stood_still, f"{started}, and no {proof}")
        # Zeros that `Counter` may hold say nothing.
        self.verdict.counts = +self.verdict.counts
        for directory in directories:
            left = remaining(directory, timeout=LEFTOVER_TIMEOUT_S)
            self.expect(not left, f"left in {directory.name}: {left[:5]}")
        leaks = settle(self._before, timeout=LEFTOVER_TIMEOUT_S).in_directories(_own_directories())
        self.expect(not leaks, f"left: {leaks.lines()[:5]}")
        leaks.end_processes()
        self.verdict.seconds = time.monotonic() - self._started
        return self.verdict
