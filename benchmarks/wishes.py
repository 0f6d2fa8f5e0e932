"""What consumers' wishes cost a producer: streams of their own, and progress that nobody uses.

The price of a stream of one's own is what an offer costs more with it; growth is that price in the largest
crowd by that in the middle one: 1 is linear.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from tensorpool import MediaDriver

from .dataplane import Run, Settings, progress, undisturbed
from .driver_growth import LINEAR
from .pair import Child, MeasurementFailed
from .targets import Target
from .wishes_actor import WishesPlan, media_driver_dir

FULL, QUICK = (0, 1, 10, 100), (0, 1, 4)
_ROUNDS, _QUICK_ROUNDS = 100, 5
_WITHIN_S = 60.0
Rows = list[list[str]]
OWN_HEAD = ["own streams", "offer µs", "each ns", "÷ one offer"]
PROGRESS_HEAD = ["frames without progress", "nobody asks for it µs", "somebody does µs", "ratio"]


@dataclass(slots=True)
class Wishes:
    """All runs of both."""

    counts: tuple[int, ...] = FULL
    own: list[Run] = field(default_factory=list)
    """Nanoseconds of an offer, by the number of own streams."""
    quiet: list[Run] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def others(self) -> float | None:
        return max((run["others_cores"] for run in (*self.own, *self.quiet)), default=None)

    def offer_ns(self, count: int) -> float | None:
        return _median(self.own, lambda run: run["offer_ns"][str(count)])

    def each_ns(self, count: int) -> float | None:
        """What each stream of their own adds to an offer."""
        return None if count == 0 else _median(self.own, lambda run: _each(run, count))

    def targets(self) -> list[Target]:
        middle, largest = self.counts[-2:]
        found = [
            Target(
                f"{largest} own streams, each",
                "one offer",
                1.0,
                True,
                _median(self.own, lambda run: _each(run, largest) / run["offer_ns"]["0"]),
            ),
            Target(
                f"price of an own stream, {middle} → {largest}",
                f"that of {middle}",
                LINEAR,
                True,
                _median(self.own, lambda run: _each(run, largest) / max(_each(run, middle), 1e-9)),
            ),
        ]
        for what in ("offer", "claim"):
            found.append(
                Target(
                    f"{what} without progress where somebody asks for it",
                    "where nobody does",
                    LINEAR,
                    True,
                    self._quiet_ratio(f"{what}_asked_ns", f"{what}_plain_ns"),
                )
            )
        return found

    def _quiet_ratio(self, above: str, below: str) -> float | None:
        return _median(self.quiet, lambda run: run[above] / run[below])

    def _quiet_ns(self, key: str) -> float | None:
        return _median(self.quiet, lambda run: run[key])

    def own_rows(self) -> Rows:
        if not self.own:
            return []
        rows = []
        for count in self.counts:
            each, whole, alone = self.each_ns(count), self.offer_ns(count), self.offer_ns(0)
            share = each / alone if each is not None and alone else None
            rows.append([str(count), _text(whole, ".2f", 1e-3), _text(each, ".0f"), _text(share, ".2f")])
        return rows

    def progress_rows(self) -> Rows:
        if not self.quiet:
            return []
        rows = []
        for name, plain, other in (
            ("offer", "offer_plain_ns", "offer_asked_ns"),
            ("claim", "claim_plain_ns", "claim_asked_ns"),
            ("claim(progress=…), unheard", "claim_plain_ns", "claim_unheard_ns"),
        ):
            figures = (_text(self._quiet_ns(key), ".2f", 1e-3) for key in (plain, other))
            rows.append([name, *figures, _text(self._quiet_ratio(other, plain), ".2f")])
        return rows

    def words(self) -> list[str]:
        found = []
        if self.own:
            found.append(
                "Own streams: bursts of offers of 64 B beside readers in another process; what each "
                "consumer's own descriptor stream adds to an offer."
            )
        if self.quiet:
            found.append(
                "Progress off: publish and consume 64 B in one process, on a stream where nobody asks for "
                "progress and on one where its consumer does; `unheard` is a claim with progress where "
                "nobody listens."
            )
        return found

    def as_json(self) -> dict[str, Any]:
        return {"own_streams": self.own, "progress_off": self.quiet}


def _each(run: Run, count: int) -> float:
    offers: dict[str, float] = run["offer_ns"]
    return (offers[str(count)] - offers["0"]) / count


def _median(runs: list[Run], of: Callable[[Run], float]) -> float | None:
    return statistics.median(of(run) for run in runs) if runs else None


def _text(value: float | None, form: str, factor: float = 1.0) -> str:
    return "-" if value is None else format(value * factor, form)


def measure(settings: Settings, *, own: bool, quiet: bool) -> Wishes:
    found = Wishes(QUICK if settings.is_quick else FULL)
    deadline = time.monotonic() + settings.patience_s
    rounds = _QUICK_ROUNDS if settings.is_quick else _ROUNDS
    wanted = (("own streams", _own, found.own), ("progress off", _quiet, found.quiet))
    for number in range(settings.runs):
        for (name, work, runs), is_wanted in zip(wanted, (own, quiet), strict=True):
            if not is_wanted:
                continue
            progress(f"run {number + 1} of {settings.runs}: {name}")
            try:
                case = lambda d, w=work: w(WishesPlan(d, found.counts, rounds))  # noqa: E731
                runs.append(undisturbed(case, deadline))
            except MeasurementFailed as error:
                found.failures.append(f"{name}: {error}")
    progress("")
    return found


def _own(plan: WishesPlan) -> Run:
    with ExitStack() as stack:
        stack.enter_context(MediaDriver(media_driver_dir(plan.directory)))

        def child(role: str) -> Child:
            made = Child("benchmarks.wishes_actor", role, plan.to_json(), state=plan.directory)
            stack.callback(made.end)
            made.expect_ready()
            return made

        producer, readers = child("producer"), child("readers")
        offers: dict[str, float] = {}
        for count in plan.counts:
            readers.ask()
            told = producer.ask()
            if told["lane_lost"] or told["lane_published"] != count * told["published"]:
                raise MeasurementFailed(f"{count} own streams, and not every one had every frame: {told}")
            offers[str(count)] = told["offer_ns"]
    return {"offer_ns": offers}


def _quiet(plan: WishesPlan) -> Run:
    with ExitStack() as stack:
        stack.enter_context(MediaDriver(media_driver_dir(plan.directory)))
        child = Child("benchmarks.wishes_actor", "progress", plan.to_json(), state=plan.directory)
        stack.callback(child.end)
        return child.result(_WITHIN_S)
