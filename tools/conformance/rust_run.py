"""A run of `cargo test` that keeps a report: `python -m tools.conformance.rust_run REPORT COMMAND …`.

It prints one line for each test binary, and the whole output if a test fails.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from tools.conformance.requirements import ROOT
from tools.conformance.run_report import RUST_SOURCES, Kind, Outcome, TestRun, fingerprint

BINARY = re.compile(r"^\s*Running .* \((?:.*/)?(?P<name>\w+)-[0-9a-f]{16}\)$")
TEST = re.compile(
    r"^test (?P<name>[\w:]+)(?: - should panic)? \.\.\. (?P<outcome>ok|FAILED|ignored)(?P<why>.*)$"
)
SUMMARY = re.compile(r"^test result: ")
KINDS: dict[str, Kind] = {"ok": "passed", "FAILED": "failed", "ignored": "skipped"}


def parse(lines: Iterable[str]) -> dict[str, Outcome]:
    """Outcomes by binary and path of the test, from the output of `cargo test`."""
    tests: dict[str, Outcome] = {}
    binary = ""
    for line in lines:
        if match := BINARY.match(line):
            binary = match["name"]
        elif match := TEST.match(line):
            reason = match["why"].strip(" ,") or ("" if match["outcome"] == "ok" else match["outcome"])
            tests[f"{binary}::{match['name']}"] = Outcome(KINDS[match["outcome"]], reason)
    return tests


def main(arguments: list[str]) -> int:
    """Runs the command, prints its summary, writes the report."""
    if len(arguments) < 2:
        print(__doc__.splitlines()[0], file=sys.stderr)
        return 2
    path, command = Path(arguments[0]), arguments[1:]
    path.unlink(missing_ok=True)
    sources = fingerprint(ROOT, RUST_SOURCES)
    # One pipe: the names of the binaries are on stderr, and have to stay in front of their tests.
    result = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env={**os.environ, "CARGO_TERM_COLOR": "never"},
    )
    lines = result.stdout.splitlines()
    TestRun(
        command=shlex.join(command),
        finished=time.strftime("%Y-%m-%d %H:%M:%S"),
        fingerprint=sources,
        status=result.returncode,
        long=False,
        tests=parse(lines),
    ).write(path)
    if result.returncode:
        print(result.stdout)
    else:
        print("\n".join(line for line in lines if SUMMARY.match(line) and " 0 passed" not in line))
    return result.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
