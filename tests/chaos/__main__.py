"""The command: `python -m tests.chaos --seed S --minutes M [--only SCENARIO] [--json] [--page]`."""

from __future__ import annotations

import argparse
import json
import random
import sys
import time

from tests.chaos.checker import Checker, Verdict
from tests.chaos.page import add_single, write_page
from tests.chaos.scenarios import NAMES, Scenario, load
from tests.chaos.stage import NotPossible, stage
from tests.leaks import adopt_orphans


def run_scenario(scenario: Scenario, seed: int, seconds: float) -> Verdict:
    """Runs one scenario with its own stage. An error of the scenario is a finding."""
    checker = Checker(scenario.name, seed)
    try:
        with stage(checker, seed, seconds, scenario.memory_bytes, scenario.grace_s) as on_stage:
            scenario.run(on_stage)
    except NotPossible as why:
        checker.verdict.skipped = str(why)
    except Exception as error:
        checker.expect(False, f"the scenario failed: {error!r}")
    return checker.end()


def run_schedule(names: list[str], seed: int, seconds: float, *, show: bool) -> list[Verdict]:
    """Runs scenarios one after the other, each with its share of the time and its own seed."""
    scenarios = [load(name) for name in names]
    whole = sum(scenario.share for scenario in scenarios)
    verdicts = []
    for scenario in scenarios:
        if show:
            print(f"… {scenario.title}", file=sys.stderr, flush=True)
        # From the name: a scenario that is run alone does the same as in the whole schedule.
        own_seed = random.Random(f"{seed}/{scenario.name}").randrange(1 << 32)
        verdict = run_scenario(scenario, own_seed, seconds * scenario.share / whole)
        verdicts.append(verdict)
        if show:
            print(_row(verdict), file=sys.stderr, flush=True)
    return verdicts


def _row(verdict: Verdict) -> str:
    mark = "-" if verdict.skipped else "✓" if verdict.ok else "✗"
    counts = ", ".join(f"{what} {number:,}" for what, number in sorted(verdict.counts.items()))
    lines = [f"{mark} {verdict.scenario:<12} {verdict.seconds:7.1f} s  {counts or verdict.skipped}"]
    return "\n".join([*lines, *(f"    ✗ {finding}" for finding in verdict.findings)])


def _warm_up() -> None:
    """Lets libraries start the threads that they keep, before the first look at what there is."""
    import pyarrow as pa

    pa.table({"a": [1]}).column(0).to_pylist()


def main() -> int:
    """The exit status: 0 if nothing was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="repeats a run; random without it")
    parser.add_argument("--minutes", type=float, default=120.0, help="of the whole schedule [120]")
    parser.add_argument("--only", action="append", choices=NAMES, help="only this scenario; may be repeated")
    parser.add_argument("--json", action="store_true", help="the verdicts as JSON on stdout")
    parser.add_argument(
        "--page",
        action="store_true",
        help="write docs/explanation/what-was-tried.md; with --only, its section on single scenarios",
    )
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1 << 32)
    adopt_orphans()
    _warm_up()
    print(f"seed {seed}", file=sys.stderr)
    started = time.monotonic()
    verdicts = run_schedule(arguments.only or list(NAMES), seed, 60 * arguments.minutes, show=True)
    if arguments.json:
        print(json.dumps({"seed": seed, "verdicts": [verdict.to_json() for verdict in verdicts]}, indent=2))
    if arguments.page:
        write = add_single if arguments.only else write_page
        write(verdicts, seed, time.monotonic() - started)
    return 0 if all(not verdict.findings for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
