"""Tests that name requirements: found by collecting, without running them.

A Python test names its requirements with `@pytest.mark.requirement("wire-8.3-1")`, a Rust test with a line
`/// requirement: wire-8.3-1, wire-8.3-2` in the comment above its `#[test]`.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

RUST_REQUIREMENT = re.compile(r"^\s*/// requirement:\s*(?P<ids>.*)$")
RUST_TEST = re.compile(r"^\s*#\[(?:\w+::)*test\]")
# Lines that are allowed between the comment line and the test attribute.
RUST_BETWEEN = re.compile(r"^\s*(///|#\[)")
RUST_FUNCTION = re.compile(r"^\s*fn (?P<name>\w+)")


@dataclass(frozen=True)
class Mark:
    """One test that names a requirement."""

    test: str
    """Its id in the report of a test run; of a Rust test, the pattern of its id."""
    place: str
    """Where it is, for people: a test with parameters is one place."""
    is_rust: bool = False
    is_long: bool = False
    """Whether only `make test-long` runs it."""


@dataclass
class Marks:
    """Tests by requirement id, and errors."""

    tests: dict[str, list[Mark]] = field(default_factory=lambda: defaultdict(list))
    errors: list[str] = field(default_factory=list)

    def all(self) -> set[Mark]:
        """Every test that names a requirement."""
        return {mark for marks in self.tests.values() for mark in marks}

    def places(self, name: str) -> list[str]:
        """Where the tests of a requirement are."""
        return list(dict.fromkeys(mark.place for mark in self.tests.get(name, [])))


def collect(root: Path) -> Marks:
    """Collects the tests of a repository that name requirements."""
    marks = Marks()
    _collect_python(root, marks)
    collect_rust(root, marks)
    return marks


def _collect_python(root: Path, marks: Marks) -> None:
    import pytest

    class Collector:
        def pytest_collection_finish(self, session: pytest.Session) -> None:
            for item in session.items:
                mark = Mark(
                    test=item.nodeid,
                    place=item.nodeid.partition("[")[0],
                    is_long=item.get_closest_marker("long") is not None,
                )
                for marker in item.iter_markers("requirement"):
                    for name in marker.args:
                        marks.tests[name].append(mark)

    output = io.StringIO()
    arguments = ["--collect-only", "-qq", "--rootdir", str(root), "-c", str(root / "pyproject.toml")]
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output), contextlib.chdir(root):
        status = pytest.main([*arguments, str(root / "tests")], plugins=[Collector()])
    if status not in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
        marks.errors.append(f"the tests cannot be collected:\n{output.getvalue().strip()}")


def collect_rust(root: Path, marks: Marks) -> None:
    """Adds the Rust tests that name requirements."""
    for path in sorted((root / "crates").rglob("*.rs")):
        source = path.relative_to(root)
        lines = path.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines, start=1):
            if not (match := RUST_REQUIREMENT.match(line)):
                continue
            if not (function := _function_below(lines[number:])):
                marks.errors.append(f"{source}:{number}: a requirement line without a #[test] below it")
                continue
            mark = Mark(rust_test_pattern(source, function), f"{source}:{number}", is_rust=True)
            for name in re.split(r"[,\s]+", match["ids"].strip()):
                marks.tests[name].append(mark)


def _function_below(following: list[str]) -> str:
    is_test = False
    for line in following:
        if match := RUST_FUNCTION.match(line):
            return match["name"] if is_test else ""
        if RUST_TEST.match(line):
            is_test = True
        elif not RUST_BETWEEN.match(line):
            return ""
    return ""


def rust_test_pattern(source: Path, function: str) -> str:
    """Pattern of the id that `tools.conformance.rust_run` gives a test: its binary, then its path in it.

    Modules inside a file, such as `tests`, do not show in the path of the file.
    """
    _, crate, kind, *names = source.with_suffix("").parts
    if kind == "tests":
        return rf"{re.escape(names[0])}(::\w+)*::{function}"
    modules = [name for name in names if name not in {"lib", "main", "mod"}]
    return "::".join([rf"tensorpool_{crate.replace('-', '_')}", *modules]) + rf"(::\w+)*::{function}"
