"""`make wheel`: builds the source distribution and a wheel for each architecture into dist/, and checks them.

The debug information of each native module goes to a file of its own beside them. Each wheel is installed
into an empty environment and exchanges frames there, that of another architecture under emulation.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from . import checks, emulation
from .build import ROOT, TARGETS, BuiltWheel, WheelError, build_sdist, build_wheel, require_target
from .installation import Interpreter, install, try_package


def main() -> int:
    """Runs the command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="make wheel", description=__doc__)
    parser.add_argument("--arch", action="append", choices=sorted(TARGETS), help="Only this architecture.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="Where the files go.")
    parser.add_argument("--no-emulation", action="store_true", help="Do not run the wheels of others.")
    parser.add_argument("--no-sdist", action="store_true", help="No source distribution.")
    parser.add_argument("--no-wheel", action="store_true", help="No wheel: `make sdist`.")
    parser.add_argument(
        "--from-sdist", action="store_true", help="Install the source distribution too: minutes."
    )
    arguments = parser.parse_args()
    try:
        make(arguments)
    except WheelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def make(arguments: argparse.Namespace) -> None:
    """Builds and checks what is asked for."""
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    machines = [] if arguments.no_wheel else arguments.arch or list(TARGETS)
    _require_tools(machines, emulate=not arguments.no_emulation)
    if not arguments.no_sdist:
        sdist = build_sdist(out)
        checks.check_sdist(sdist)
        _report(sdist)
        if arguments.from_sdist:
            _try_here(sdist)
    for machine in machines:
        started = time.monotonic()
        built = build_wheel(TARGETS[machine], out)
        checks.check_wheel(built)
        _report(built.wheel, f"built in {time.monotonic() - started:.0f} s, auditwheel agrees")
        _report(built.debug_file, "debug information")
        if machine == platform.machine():
            _try_here(built.wheel)
        elif not arguments.no_emulation:
            _try_emulated(built)


def _require_tools(machines: list[str], *, emulate: bool) -> None:
    """Raises WheelError if a wheel of these could be built, but not finished or tried, minutes later.

    Packages of the system that are missing are installed, or named with the command that installs them.
    """
    if not machines:
        return
    foreign = [machine for machine in machines if machine != platform.machine()]
    parts = ["strip", *(["emulation"] if foreign and emulate else [])]
    if subprocess.run([ROOT / "tools" / "system-packages", *parts], check=False).returncode:
        raise WheelError("`make wheel` needs packages of the system, which are named above")
    for machine in machines:
        require_target(TARGETS[machine])
    for machine in foreign if emulate else []:
        emulation.require(machine)


def _try_here(distribution: Path) -> None:
    with tempfile.TemporaryDirectory() as directory:
        started = time.monotonic()
        python = install(distribution, Path(directory) / "venv")
        print(f"  installed in {time.monotonic() - started:.0f} s", flush=True)
        _try(python)


def _try_emulated(built: BuiltWheel) -> None:
    _try(emulation.prepare(built, ROOT / "build" / "emulation"))


def _try(python: Interpreter) -> None:
    for line in try_package(python).splitlines():
        print(f"  {line}", flush=True)


def _report(path: Path, remark: str = "") -> None:
    print(
        f"{path.name}  {path.stat().st_size / 2**20:.1f} MiB{f'  ({remark})' if remark else ''}", flush=True
    )


if __name__ == "__main__":
    sys.exit(main())
