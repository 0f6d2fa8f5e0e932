"""The command behind `make fuzz`: libFuzzer over the fuzz targets of crates/core, on stable Rust.

`fuzz/` is compiled with LLVM's coverage instrumentation, whose flags need no nightly compiler. The corpora
are in `fuzz/corpus`. What a run finds goes to `build/fuzz`; `--merge` adds what reaches new code to them.
An input that breaks a target is kept as `build/fuzz/<target>/crash-…`, and fails the command.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CORPUS = ROOT / "fuzz" / "corpus"
BUILD = ROOT / "build" / "fuzz"
RESULTS = ROOT / "build" / "fuzz.json"
TRIPLE = f"{platform.machine()}-unknown-linux-gnu"
PROGRAM = ROOT / "target" / "fuzz" / TRIPLE / "release" / "fuzz"
MAX_INPUT_BYTES = 2048
COVERAGE = (
    "level=4", "inline-8bit-counters", "pc-table", "trace-compares",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Result:
    """The run of one target."""

    target: str
    inputs: int
    seconds: int
    corpus: int
    crash: str | None

    @property
    def ok(self) -> bool:
        """Whether no input broke the target."""
        return self.crash is None


def build() -> None:
    """Compiles the program with coverage. Cargo notices by itself if nothing has changed."""
    flags = ["-Cpasses=sancov-module", *(f"-Cllvm-args=-sanitizer-coverage-{flag}" for flag in COVERAGE)]
    environment = {**os.environ, "RUSTFLAGS": " ".join([*flags, "-Ccodegen-units=1", "--cfg=fuzzing"])}
    command = ["cargo", "build", "--quiet", "--release", "--locked", "--target", TRIPLE]
    command += ["--target-dir", str(ROOT / "target" / "fuzz")]
    subprocess.run(command, check=True, cwd=ROOT / "fuzz", env=environment)


def fuzz(target: str, seconds: int) -> Result:
    """Runs one target for a time, from its corpus."""
    directory = BUILD / target
    directory.mkdir(parents=True, exist_ok=True)
    command = [
        str(PROGRAM), f"-max_total_time={seconds}", f"-max_len={MAX_INPUT_BYTES}", "-print_final_stats=1",
        f"-artifact_prefix={directory}/", str(directory), str(CORPUS / target),
    ]  # fmt: skip
    done = subprocess.run(
        command, check=False, env=_environment(target), capture_output=True, text=True, errors="replace"
    )
    executed = re.search(r"number_of_executed_units: (\d+)", done.stderr)
    crash = re.search(r"Test unit written to (\S+)", done.stderr)
    if done.returncode and crash is None:
        raise SystemExit(f"{target}: libFuzzer ended with {done.returncode}: {done.stderr[-500:]}")
    return Result(
        target,
        inputs=int(executed[1]) if executed else 0,
        seconds=seconds,
        corpus=len(list((CORPUS / target).iterdir())),
        crash=crash[1] if crash else None,
    )


def merge(target: str) -> None:
    """Adds to the corpus what reaches code that the corpus does not reach yet."""
    command = [str(PROGRAM), "-set_cover_merge=1", "-use_counters=0", f"-max_len={MAX_INPUT_BYTES}"]
    command += [str(CORPUS / target), str(BUILD / target)]
    subprocess.run(command, env=_environment(target), capture_output=True, check=True)


def _environment(target: str) -> dict[str, str]:
    return {**os.environ, "FUZZ_TARGET": target}


def main() -> int:
    """The exit status: 0 if no target was broken."""
    targets = sorted(path.name for path in CORPUS.iterdir())
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=int, default=20, help="for each target [20]")
    parser.add_argument("--only", action="append", choices=targets, help="only this target; may be repeated")
    parser.add_argument("--merge", action="store_true", help="add new inputs to fuzz/corpus")
    arguments = parser.parse_args()
    if shutil.which("c++") is None:
        print("fuzzing is skipped: libFuzzer needs a C++ compiler (c++)", file=sys.stderr)
        return 0
    build()
    results = []
    for target in arguments.only or targets:
        result = fuzz(target, arguments.seconds)
        results.append(result)
        mark = "✓" if result.ok else f"✗ {result.crash}"
        print(f"{target:<12} {result.inputs:>12,} inputs in {result.seconds} s  {mark}", flush=True)
        if arguments.merge and result.ok:
            merge(target)
    if arguments.only is None:
        RESULTS.parent.mkdir(exist_ok=True)
        record = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "results": [asdict(result) for result in results]}
        RESULTS.write_text(json.dumps(record, indent=2) + "\n")
    return 0 if all(result.ok for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
