"""A wheel of the checkout as it is: its Python files and the native module that was built last.

It compiles nothing, so that every test run can install it: `python -m tools.wheel.quick DIRECTORY`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from .archive import pack

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("tensorpool", "pyspark_tensorpool")
NATIVE = "tensorpool/_native.abi3.so"
_SKIPPED = ("__pycache__",)


def build(directory: Path) -> Path:
    """Writes the wheel into `directory`."""
    files = metadata()
    (info,) = {name.partition("/")[0] for name in files}
    source = ROOT / "python"
    for package in PACKAGES:
        for path in sorted((source / package).rglob("*")):
            if path.is_file() and not any(part in _SKIPPED for part in path.parts):
                files[path.relative_to(source).as_posix()] = path.read_bytes()
    tag = next(
        line.removeprefix("Tag: ")
        for line in files[f"{info}/WHEEL"].decode().splitlines()
        if line.startswith("Tag: ")
    )
    return pack(directory / f"{info.removesuffix('.dist-info')}-{tag}.whl", files)


def metadata() -> dict[str, bytes]:
    """The metadata of the wheel, written by its build tool: name, version, requirements, commands."""
    with tempfile.TemporaryDirectory() as directory:
        command = [
            sys.executable,
            "-m",
            "maturin",
            "pep517",
            "write-dist-info",
            "--metadata-directory",
            directory,
        ]
        subprocess.run(
            [*command, "--interpreter", sys.executable],
            check=True,
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        base = Path(directory)
        return {
            path.relative_to(base).as_posix(): path.read_bytes()
            for path in sorted(base.rglob("*"))
            if path.is_file()
        }


if __name__ == "__main__":
    print(build(Path(sys.argv[1])))
