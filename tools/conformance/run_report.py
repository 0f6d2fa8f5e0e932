"""Reports of test runs: the outcome of each test, and of which state of the sources.

pytest writes one with `--requirement-report`, `tools.conformance.rust_run` one for each run of cargo.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

Kind = Literal["passed", "failed", "skipped"]

FORMAT = 1
# What can change the outcome of a test. Not tests/conformance: the lists there are compared after the run.
SOURCES = ("Cargo.toml", "Cargo.lock", "pyproject.toml", "cmake", "crates", "python", "examples", "tests")
RUST_SOURCES = ("Cargo.toml", "Cargo.lock", "cmake", "crates", "python/tensorpool/sbe/schemas")
IGNORED_SUFFIXES = {".pyc", ".so"}
IGNORED_DIRECTORIES = {"__pycache__", ".pytest_cache"}


@dataclass(frozen=True)
class Outcome:
    """What became of one test."""

    outcome: Kind
    reason: str = ""
    """Why it was skipped or failed, in one line."""


@dataclass(frozen=True)
class TestRun:
    """One run of tests."""

    __test__ = False  # pytest would collect it by its name.

    command: str
    finished: str
    """Local time at which it ended."""
    fingerprint: str
    """Of the sources when it began."""
    status: int
    """Exit status; 0 if every test that ran passed."""
    long: bool
    """Whether it ran the long tests."""
    tests: dict[str, Outcome] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Writes the report."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> TestRun | None:
        """Reads a report; None if there is none, or one of another format."""
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
            if fields.pop("format") != FORMAT:
                return None
            tests = {name: Outcome(**outcome) for name, outcome in fields.pop("tests").items()}
            return cls(**fields, tests=tests)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None


def fingerprint(root: Path, sources: Iterable[str] = SOURCES) -> str:
    """Digest of the contents of the sources that a test run depends on."""
    digest = hashlib.sha256()
    lists = root / "tests" / "conformance"
    for path in sorted(path for name in sources for path in _files(root / name)):
        if path.is_relative_to(lists):
            continue
        digest.update(f"{path.relative_to(root)}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:32]


def _files(path: Path) -> Iterable[Path]:
    if path.is_file():
        yield path
        return
    for directory, directories, names in os.walk(path):
        directories[:] = [name for name in directories if name not in IGNORED_DIRECTORIES]
        for name in names:
            file = Path(directory, name)
            if file.suffix not in IGNORED_SUFFIXES and file.is_file():
                yield file
