"""The wheel of another architecture, run on this machine by QEMU's user mode.

A directory gets Python of that architecture from Debian's packages, unpacked and not installed, and the
dependencies from their wheels. Each process of the check is an emulator of its own, so the kernel needs to
know nothing of the architecture, and both processes use this machine's shared memory.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .build import BuiltWheel, WheelError
from .installation import CONSTRAINTS

SUITE: Final = "bookworm"
MIRROR: Final = "http://deb.debian.org/debian"
PYTHON: Final = "3.11"
# Debian's name of an architecture.
DEBIAN_NAMES: Final = {"aarch64": "arm64", "x86_64": "amd64"}


@dataclass(frozen=True, slots=True)
class EmulatedPython:
    """An interpreter of another architecture."""

    machine: str
    emulator: str
    root: Path
    packages: Path

    def command(self, *arguments: str) -> list[str]:
        """The command that runs the interpreter."""
        # The loader is started by name: with a prefix for all paths the emulator would look there for the
        # directories that lead to shared memory, too.
        libraries = [self.root / place / f"{self.machine}-linux-gnu" for place in ("lib", "usr/lib")]
        loader = self.root / "lib" / f"ld-linux-{self.machine}.so.1"
        program = self.root / "usr/bin" / f"python{PYTHON}"
        path = ":".join(map(str, libraries))
        return [self.emulator, str(loader), "--library-path", path, str(program), *arguments]

    def environment(self) -> dict[str, str]:
        """Where it finds its own modules and the packages."""
        return {"PYTHONHOME": str(self.root / "usr"), "PYTHONPATH": str(self.packages)}


def missing_tools(machine: str) -> list[str]:
    """Debian packages that emulation needs and this machine lacks."""
    missing = [] if find_emulator(machine) else ["qemu-user-static"]
    return missing if shutil.which("debootstrap") else [*missing, "debootstrap"]


def require(machine: str) -> None:
    """Raises WheelError if a wheel of the architecture cannot be run here."""
    if missing := missing_tools(machine):
        raise WheelError(f"the {machine} wheel cannot be run: apt-get install {' '.join(missing)}")


def find_emulator(machine: str) -> str | None:
    """QEMU's program for the architecture: the package qemu-user names it without a suffix."""
    return shutil.which(f"qemu-{machine}-static") or shutil.which(f"qemu-{machine}")


def prepare(built: BuiltWheel, cache: Path) -> EmulatedPython:
    """Unpacks Python into `cache`, where a later run finds it; beside it the wheel and its dependencies."""
    machine = built.target.machine
    root = cache / f"{machine}-{SUITE}"
    if not (root / ".complete").exists():
        _unpack_python(machine, root)
    packages = cache / f"{machine}-packages"
    shutil.rmtree(packages, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--target", str(packages)]
    command += ["--only-binary=:all:", "--python-version", PYTHON, "--abi", "abi3", "--abi", "cp311"]
    command += [f"--platform=manylinux_2_{minor}_{machine}" for minor in range(17, 29)]
    command += ["--constraint", str(CONSTRAINTS), str(built.wheel)]
    if subprocess.run(command, check=False).returncode:
        raise WheelError(f"{built.wheel.name} cannot be installed for {machine}")
    emulator = find_emulator(machine)
    assert emulator is not None, "missing_tools has looked for it"
    return EmulatedPython(machine, emulator, root, packages)


def _unpack_python(machine: str, root: Path) -> None:
    shutil.rmtree(root, ignore_errors=True)
    root.parent.mkdir(parents=True, exist_ok=True)
    command = ["debootstrap", "--foreign", f"--arch={DEBIAN_NAMES[machine]}", "--variant=minbase"]
    command += ["--include=python3,libpython3-stdlib", SUITE, str(root), MIRROR]
    if subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode:
        raise WheelError(f"Python for {machine} cannot be fetched from {MIRROR}")
    for package in sorted((root / "var/cache/apt/archives").glob("*.deb")):
        subprocess.run(["dpkg-deb", "--extract", str(package), str(root)], check=True)
    (root / ".complete").touch()
