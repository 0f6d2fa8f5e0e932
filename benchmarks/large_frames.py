"""Large frames in small rings: 640 KiB and 4 MiB with 2 and 4 slots, beside the peer with as many buffers.

A ring that stays in the last-level cache is the case that large frames are fastest in. Beside each figure is
the bare copy into the same ring: no library that copies can be faster.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field

from .dataplane import OURS, SIZES, Run, Settings, measure_undisturbed, show_progress
from .library import Plan
from .processes import MeasurementFailed, measure_pair
from .section import Rows
from .targets import PEER, Target

CASES = (("640 KiB", 4), ("4 MiB", 2), ("4 MiB", 4))
HEAD = [
    "size",
    "slots",
    "library",
    "p50 µs",
    "p99 µs",
    "bare copy µs",
    "GiB/s",
    "lost",
    "÷ bare copy",
    f"÷ {PEER}",
]
Case = tuple[str, str, int]
"""Library, size and slots."""


@dataclass(slots=True)
class LargeFrameRuns:
    """All runs, by library, frame size and slots."""

    runs: dict[Case, list[Run]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def others(self) -> float | None:
        """Largest load by other processes during a measurement, in cores."""
        return max((run["others_cores"] for runs in self.runs.values() for run in runs), default=None)

    def _ratio(self, case: Case, key: str, to: Case, to_key: str) -> float | None:
        ratios = [
            one[key] / other[to_key]
            for one, other in zip(self.runs.get(case, []), self.runs.get(to, []), strict=False)
            if one.get(key) and other.get(to_key)
        ]
        return statistics.median(ratios) if ratios else None

    def targets(self) -> list[Target]:
        """Bounds on latency and rate beside the peer, and beside the bare copy."""
        targets = []
        for size, slots in CASES:
            ours, peer = (OURS, size, slots), (PEER, size, slots)
            name = f"{size}, ring of {slots}"
            bare = self._ratio(ours, "delivered_hz", ours, "bare_copy_hz")
            targets.append(Target(f"delivered rate, {name}", "the bare copy, same ring", 0.9, False, bare))
            if peer not in self.runs:
                continue
            if size == "640 KiB":
                ratio = self._ratio(ours, "p50_us", peer, "p50_us")
                targets.append(Target(f"p50 latency, {name}", PEER, 1.0, True, ratio))
            else:
                ratio = self._ratio(ours, "delivered_hz", peer, "delivered_hz")
                targets.append(Target(f"delivered rate, {name}", PEER, 1.0, False, ratio))
        return targets

    def rows(self) -> Rows:
        """Rows of the table."""
        rows = []
        for case, runs in sorted(self.runs.items(), key=lambda item: CASES.index(item[0][1:])):
            library, size, slots = case

            def median(key: str, runs: list[Run] = runs) -> float | None:
                known = [run[key] for run in runs if run.get(key) is not None]
                return statistics.median(known) if known else None

            rate, bare = median("delivered_hz"), median("bare_copy_hz")
            rows.append(
                [
                    size,
                    str(slots),
                    library,
                    _text(median("p50_us"), ".1f"),
                    _text(median("p99_us"), ".1f"),
                    _text(None if bare is None else 1e6 / bare, ".1f"),
                    _text(None if rate is None else rate * SIZES[size] / (1 << 30), ".2f"),
                    _text(median("loss"), ".1%"),
                    _text(self._ratio(case, "delivered_hz", case, "bare_copy_hz"), ".2f"),
                    _text(self._ratio(case, "delivered_hz", (PEER, size, slots), "delivered_hz"), ".2f"),
                ]
            )
        return rows

    def to_json(self) -> list[Run]:
        """All runs as JSON."""
        return [
            {"library": library, "size": size, "slots": slots, "runs": runs}
            for (library, size, slots), runs in self.runs.items()
        ]

    def note(self) -> str:
        """How the figures were measured."""
        return (
            "Large frames: as the table of two processes, with rings of 2 and 4 slots and as many buffers of "
            f"{PEER}; the bare copy goes into the same slots, at full speed, right after the frames."
        )


def _text(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def measure(settings: Settings) -> LargeFrameRuns:
    """Measures every case, with the peer if it was asked for."""
    result = LargeFrameRuns()
    deadline = time.monotonic() + settings.patience_s
    libraries = [OURS, *(name for name in settings.libraries if name == PEER)]
    for number in range(settings.runs):
        for size, slots in CASES:
            # By turns, so that a slow moment of the machine affects both.
            for library in libraries[number % len(libraries) :] + libraries[: number % len(libraries)]:
                show_progress(f"run {number + 1} of {settings.runs}: {library} {size}, ring of {slots}")

                def measure_once(
                    directory: str, library: str = library, size: str = size, slots: int = slots
                ) -> Run:
                    return measure_pair(
                        Plan(
                            library=library,
                            size_bytes=SIZES[size],
                            nslots=slots,
                            directory=directory,
                            warmup_s=settings.warmup_s,
                            latency_s=settings.latency_s,
                            rate_s=settings.rate_s,
                        )
                    )

                try:
                    run = measure_undisturbed(measure_once, deadline)
                except MeasurementFailed as error:
                    result.failures.append(f"{library} {size}, ring of {slots}: {error}")
                    continue
                result.runs.setdefault((library, size, slots), []).append(run)
    show_progress("")
    return result
