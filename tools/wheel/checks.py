"""Checks of what was built: platform tag, linked libraries, contents and size."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

from .archive import unpack
from .build import COMPATIBILITY, NATIVE, BuiltWheel, WheelError

# Libraries of every Linux that a wheel of the tag may link.
SYSTEM_LIBRARIES: Final = {
    "libc.so.6",
    "libm.so.6",
    "libdl.so.2",
    "libpthread.so.0",
    "librt.so.1",
    "libgcc_s.so.1",
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
}
# Files of the package that are no Python, and that it reads when it runs.
DATA_FILES: Final = ("tensorpool/sbe/schemas/", "tensorpool/pipeline/report/", "tensorpool/py.typed")
MAX_WHEEL_BYTES: Final = 8 << 20


def check_wheel(built: BuiltWheel) -> None:
    """Raises WheelError unless the wheel is complete and runs on a plain Linux."""
    name = built.wheel.name
    if not re.search(rf"-cp311-abi3-.*{COMPATIBILITY}_{built.target.machine}", name):
        raise WheelError(f"{name} is not for all Pythons from 3.11 on {COMPATIBILITY}_{built.target.machine}")
    files = unpack(built.wheel)
    for prefix in DATA_FILES:
        if not any(file.startswith(prefix) for file in files):
            raise WheelError(f"{name} has no {prefix}")
    if foreign := linked_libraries(built.wheel) - SYSTEM_LIBRARIES:
        raise WheelError(f"{name} links {', '.join(sorted(foreign))}, which a plain Linux may lack")
    audit(built.wheel)
    if built.wheel.stat().st_size > MAX_WHEEL_BYTES:
        raise WheelError(f"{name} is larger than {MAX_WHEEL_BYTES >> 20} MiB: has it kept debug information?")


def linked_libraries(wheel: Path) -> set[str]:
    """Names of the shared libraries that the native module needs."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(unpack(wheel)[NATIVE])
        file.flush()
        done = subprocess.run(["readelf", "--dynamic", file.name], check=True, capture_output=True, text=True)
    return set(re.findall(r"\(NEEDED\).*\[(.*)\]", done.stdout))


def audit(wheel: Path) -> None:
    """Raises WheelError unless auditwheel agrees with the tag."""
    command = [sys.executable, "-m", "auditwheel", "show", str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    # Only the verdict counts: the name of the file, which is printed too, has the tag in any case.
    verdict = re.search(r'platform tag:\s+"manylinux_(\d+)_(\d+)_\w+"', done.stdout)
    wanted = tuple(map(int, COMPATIBILITY.split("_")[1:]))
    if done.returncode or verdict is None or (int(verdict[1]), int(verdict[2])) > wanted:
        raise WheelError(
            f"auditwheel does not find {wheel.name} to be {COMPATIBILITY}:\n{done.stdout}{done.stderr}"
        )


def check_sdist(sdist: Path) -> None:
    """Raises WheelError unless the source distribution has what its build needs, and cargo can read it.

    The whole build is the same as that of the checkout and takes minutes: `installation.install` runs it.
    """
    with tempfile.TemporaryDirectory() as directory:
        tree = extract(sdist, Path(directory))
        for needed in ("cmake/aeron-toolchain.cmake", "cmake/aeron-patches.cmake", ".cargo/config.toml"):
            if not (tree / needed).is_file():
                raise WheelError(f"{sdist.name} has no {needed}, without which Aeron is compiled another way")
        metadata = ["cargo", "metadata", "--locked", "--offline", "--no-deps", "--format-version", "1"]
        done = subprocess.run(metadata, cwd=tree, capture_output=True, text=True, check=False)
        if done.returncode or not json.loads(done.stdout)["packages"]:
            raise WheelError(f"cargo cannot read {sdist.name}:\n{done.stderr}")


def extract(sdist: Path, directory: Path) -> Path:
    """Unpacks a source distribution; returns its top directory."""
    directory.mkdir(exist_ok=True)
    with tarfile.open(sdist) as archive:
        # Python 3.11.2, of Debian 12, has no filters yet. The archive is our own.
        if hasattr(tarfile, "data_filter"):
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(directory)
    (tree,) = directory.iterdir()
    return tree
