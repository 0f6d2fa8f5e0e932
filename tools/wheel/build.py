"""Building: one wheel for each architecture and the source distribution, with debug information split off.

zig compiles and links for an old C library, whatever the machine has, and for the other architecture.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .archive import pack, unpack

ROOT: Final = Path(__file__).resolve().parents[2]
CRATES: Final = ROOT / "crates"
MATURIN: Final = (sys.executable, "-m", "maturin")
NATIVE: Final = "tensorpool/_native.abi3.so"
COMPATIBILITY: Final = "manylinux_2_28"


class WheelError(Exception):
    """A wheel that cannot be built here, or that is not as it must be."""


@dataclass(frozen=True, slots=True)
class Target:
    """An architecture that wheels are built for."""

    machine: str
    c_processor: str
    """The oldest processor that Aeron's C code runs on."""

    @property
    def triple(self) -> str:
        """Its name in Rust."""
        return f"{self.machine}-unknown-linux-gnu"


TARGETS: Final = {
    target.machine: target for target in (Target("x86_64", "x86-64-v2"), Target("aarch64", "armv8-a"))
}


@dataclass(frozen=True, slots=True)
class BuiltWheel:
    """A stripped wheel and the file with its debug information."""

    wheel: Path
    debug_file: Path
    target: Target


def build_wheel(target: Target, out: Path) -> BuiltWheel:
    """Builds the wheel of an architecture into `out`."""
    variable = target.triple.replace("-", "_")
    environment = {
        **os.environ,
        # cmake/aeron-toolchain.cmake and crates/dataplane/build.rs read it.
        "TENSORPOOL_WHEEL_TARGET": target.triple,
        f"CMAKE_TOOLCHAIN_FILE_{variable}": str(ROOT / "cmake" / "aeron-toolchain.cmake"),
        "RUSTERON_C_MARCH": target.c_processor,
    }
    with tempfile.TemporaryDirectory() as directory:
        command = [*MATURIN, "build", "--release", "--locked", "--zig", "--target", target.triple]
        command += ["--compatibility", COMPATIBILITY, "--interpreter", "python3.11", "--out", directory]
        # A directory of its own: cargo compares settings, and would compile the developer's module again.
        command += ["--target-dir", str(ROOT / "target" / "wheel")]
        command += ["--manifest-path", str(CRATES / "native" / "Cargo.toml")]
        # From here zig names its headers by whole paths. Above its own directory it names them by relative
        # ones, which bindgen does not find, because a build script runs in the directory of its crate.
        _run(command, environment, CRATES)
        (built,) = Path(directory).glob("*.whl")
        return split_debug_information(built, out, target)


def build_sdist(out: Path) -> Path:
    """Builds the source distribution into `out`."""
    with tempfile.TemporaryDirectory() as directory:
        _run([*MATURIN, "sdist", "--out", directory], dict(os.environ))
        (built,) = Path(directory).glob("*.tar.gz")
        return Path(shutil.move(built, out / built.name))


def split_debug_information(wheel: Path, out: Path, target: Target) -> BuiltWheel:
    """Writes the wheel with a stripped native module, and beside it what was removed.

    The stripped module names the other file. A debugger that finds it beside the module shows the lines of a
    stack trace.
    """
    files = unpack(wheel)
    with tempfile.TemporaryDirectory() as directory:
        module = Path(directory) / Path(NATIVE).name
        debug = module.with_name(f"{module.name}.debug")
        module.write_bytes(files[NATIVE])
        objcopy("--only-keep-debug", "--compress-debug-sections=zlib", str(module), str(debug))
        objcopy("--strip-unneeded", f"--add-gnu-debuglink={debug}", str(module))
        files[NATIVE] = module.read_bytes()
        debug_file = out / f"{wheel.stem}.debug"
        shutil.move(debug, debug_file)
    return BuiltWheel(pack(out / wheel.name, files), debug_file, target)


def objcopy(*arguments: str) -> None:
    """Runs LLVM's objcopy, which handles every architecture: Rust's own, or the system's."""
    printed = subprocess.run(["rustc", "--print", "sysroot"], check=True, capture_output=True, text=True)
    libraries = Path(printed.stdout.strip(), "lib")
    for program in sorted((libraries / "rustlib").glob("*/bin/rust-objcopy")):
        return _run([str(program), *arguments], {**os.environ, "LD_LIBRARY_PATH": str(libraries)})
    if program_on_path := shutil.which("llvm-objcopy"):
        return _run([program_on_path, *arguments])
    raise WheelError("no objcopy for other architectures: install Rust with rustup, or the package llvm")


def require_target(target: Target) -> None:
    """Installs Rust's standard library for the target with rustup. Raises WheelError if it stays missing."""
    if not _has_target(target) and shutil.which("rustup"):
        _run(["rustup", "target", "add", target.triple])
    if not _has_target(target):
        raise WheelError(
            f"Rust cannot build for {target.machine}: install it with rustup (https://rustup.rs), or build "
            f"only for this machine: make wheel ARGS='--arch {platform.machine()}'"
        )


def _has_target(target: Target) -> bool:
    libdir = subprocess.run(
        ["rustc", "--target", target.triple, "--print", "target-libdir"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    return any(Path(libdir).glob("libstd-*.rlib"))


def _run(command: list[str], environment: dict[str, str] | None = None, directory: Path = ROOT) -> None:
    done = subprocess.run(command, cwd=directory, env=environment, stdout=sys.stderr, check=False)
    if done.returncode:
        raise WheelError(f"{' '.join(command[:2])} failed with exit status {done.returncode}")
