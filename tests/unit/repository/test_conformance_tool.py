"""The command `make conformance`: its counts, its verdicts and its errors.

Each test writes a small repository with requirements, reports and crates.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tools.conformance.__main__ import parse_options, report
from tools.conformance.marks import Mark, Marks, collect_rust
from tools.conformance.requirements import ROOT, anchors, read_requirements
from tools.conformance.run_report import RUST_SOURCES, Outcome, TestRun, fingerprint
from tools.conformance.rust_run import parse

REQUIREMENTS = """\
id,level,section,summary,untestable,deviation
wire-8.2-1,MUST,8.2,a,,
wire-8.2-2,SHOULD,8.2,b,,
wire-8.20-1,MUST,8.20,c,,
wire-9-1,MUST,9,d,binds a later version,
driver-1-1,MUST,1,e,,
"""
PASSED = Outcome("passed")
RUST_TEST = "tensorpool_core::shm::slot::tests::it_holds"


class Result(NamedTuple):
    """Exit status and output of the command."""

    status: int
    out: str
    err: str

    def verdicts(self) -> dict[str, tuple[str, list[str]]]:
        """Status and reasons by requirement id, of a run with --json."""
        entries = json.loads(self.out)["requirements"]
        return {entry["id"]: (entry["status"], entry["reasons"]) for entry in entries}


class Repository:
    """A small repository."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root = root / "main"
        self._capsys = capsys
        self._marks = Marks()
        self.write("pyproject.toml", '[tool.pytest.ini_options]\nmarkers = ["requirement(id): …"]\n')
        self.write("tests/conformance/requirements.csv", REQUIREMENTS)
        self.complete(wire=[], driver=[])

    def write(self, path: str, text: str) -> None:
        """Writes a file."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def complete(self, **sections: list[str]) -> None:
        """Declares sections complete."""
        lines = [f"{document} = {json.dumps(names)}" for document, names in sections.items()]
        self.write("tests/conformance/complete.toml", "[complete]\n" + "\n".join(lines))

    def python_test(self, *ids: str, is_long: bool = False) -> None:
        """Adds a test with two parameters that names these requirements."""
        for n in (1, 2):
            test = Mark(
                f"tests/test_marked.py::test_it[{n}]", "tests/test_marked.py::test_it", False, is_long
            )
            for name in ids:
                self._marks.tests[name].append(test)

    def rust_test(self, *ids: str) -> None:
        """Writes a Rust test that names these requirements."""
        self.write(
            "crates/core/src/shm/slot.rs",
            "mod tests {\n    /// Says why.\n"
            f"    /// requirement: {', '.join(ids)}\n"
            "    #[cfg(unix)]\n    #[test]\n    fn it_holds() {}\n}\n",
        )
        collect_rust(self.root, self._marks)

    def reports(self, *outcomes: Outcome, rust: Outcome | None = None, is_long: bool = False) -> None:
        """Writes the reports of a run: the outcomes of the Python tests by parameter."""
        python = {f"tests/test_marked.py::test_it[{n}]": o for n, o in enumerate(outcomes, start=1)}
        cargo = {} if rust is None else {RUST_TEST: rust}
        ended, sources = "2026-01-02 03:04:05", fingerprint(self.root, RUST_SOURCES)
        build = self.root / "build"
        TestRun("pytest", ended, fingerprint(self.root), 0, is_long, python).write(
            build / "requirements.json"
        )
        TestRun("cargo test", ended, sources, 0, False, cargo).write(build / "requirements-cargo.json")
        TestRun("cargo test", ended, sources, 0, False, {}).write(build / "requirements-loom.json")

    def run(self, *arguments: str) -> Result:
        """Runs the command on this repository."""
        self._capsys.readouterr()
        status = report(self.root, parse_options(list(arguments)), self._marks)
        return Result(status, *self._capsys.readouterr())


@pytest.fixture
def repository(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Repository:
    return Repository(tmp_path, capsys)


# --- marks


def run_command(root: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=root,
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_marked_tests_are_counted_without_being_run(repository: Repository) -> None:
    marker = '@pytest.mark.requirement("wire-8.2-1", "wire-8.20-99")'
    repository.write("tests/test_marked.py", f"import pytest\n\n{marker}\ndef test_it():\n    1 / 0\n")
    repository.rust_test("wire-8.2-2")
    result = run_command(repository.root, "tools.conformance", "--marks", "--root", str(repository.root))
    assert result.returncode == 1
    assert result.stdout == "2 of 4 have a test; 1 cannot be tested\n"
    assert result.stderr == "error: no requirement 'wire-8.20-99', named by tests/test_marked.py::test_it\n"


def test_failed_collection_is_an_error(repository: Repository) -> None:
    repository.write("tests/test_broken.py", "import no_such_module_anywhere\n")
    result = run_command(repository.root, "tools.conformance", "--marks", "--root", str(repository.root))
    assert result.returncode == 1
    assert "no_such_module_anywhere" in result.stderr


def test_rust_requirement_without_a_test_is_an_error(repository: Repository) -> None:
    repository.write("crates/core/src/lib.rs", "/// requirement: wire-8.2-1\npub fn not_a_test() {}\n")
    marks = Marks()
    collect_rust(repository.root, marks)
    assert marks.errors == ["crates/core/src/lib.rs:1: a requirement line without a #[test] below it"]


@pytest.mark.parametrize(
    ("sections", "gaps"),
    [
        ({"wire": ["8.2"]}, "wire §8.2 is declared complete but has no test for wire-8.2-2"),
        ({"wire": ["*"]}, "wire §8.20 is declared complete but has no test for wire-8.20-1"),
        ({"wire": ["8"]}, "wire §8.20 is declared complete but has no test for wire-8.20-1"),
        ({"driver": ["1"]}, "driver §1 is declared complete but has no test for driver-1-1"),
        ({"wire": ["7"]}, "complete.toml: no section '7' in wire"),
        ({"wires": ["8.2"]}, "complete.toml: no document 'wires'"),
    ],
)
def test_missing_test_in_a_complete_section_is_an_error(
    repository: Repository, sections: dict[str, list[str]], gaps: str
) -> None:
    repository.python_test("wire-8.2-1")
    repository.complete(**sections)
    result = repository.run("--marks")
    assert result.status == 1
    assert gaps in result.err


def test_complete_section_with_all_tests_passes(repository: Repository) -> None:
    repository.python_test("wire-8.2-1", "wire-8.2-2")
    # Section 9 has only untestable requirements, which need no test.
    repository.complete(wire=["8.2", "9"])
    assert repository.run("--marks").status == 0


def test_test_of_an_untestable_requirement_is_an_error(repository: Repository) -> None:
    repository.python_test("wire-9-1")
    result = repository.run("--marks")
    assert result.status == 1
    assert "wire-9-1 is listed as untestable but has a test" in result.err


def test_ids_are_compared_with_available_specifications(repository: Repository) -> None:
    repository.write(
        "../shared/specs/requirements.csv",
        "id,level,spec,section,line,text\n"
        "wire-8.2-1,MUST,wire,8.2,1,a\n"
        "wire-8.2-2,MUST,wire,8.2,2,b\n"
        "wire-8.20-1,MUST,wire,8.20,3,c\n"
        "wire-9-1,MUST,wire,9,4,d\n"
        "wire-9-2,MUST,wire,9,5,d\n",
    )
    result = repository.run("--marks")
    assert result.status == 1
    assert "wire-9-2 is in the specifications but not in requirements.csv" in result.err
    assert "driver-1-1 is in requirements.csv but not in the specifications" in result.err
    assert "wire-8.2-2: level and section are ('MUST', '8.2'), not ('SHOULD', '8.2')" in result.err


def test_requirement_list_is_well_formed() -> None:
    requirements = read_requirements()
    assert len({requirement.id for requirement in requirements}) == len(requirements) == 341
    for requirement in requirements:
        assert requirement.level in {"MUST", "SHOULD"}
        assert requirement.id.startswith(f"{requirement.document}-{requirement.section}-")
        assert requirement.summary.endswith(".")
        assert len(requirement.summary) <= 140


def test_marker_with_an_unknown_id_stops_the_test_run(pytester: pytest.Pytester, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeconftest('pytest_plugins = ["tests.conftest"]')
    pytester.makepyfile(
        """
        import pytest
        @pytest.mark.requirement("wire-99-1")
        def test_it(): pass
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "test_it: no requirement 'wire-99-1'" in result.stderr.str() + result.stdout.str()


# --- reports


def test_report_has_the_outcome_of_each_worker(pytester: pytest.Pytester, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    # The hooks of tests/conftest.py, without what it imports.
    pytester.makeconftest(
        """
        from pathlib import Path
        from tools.conformance.pytest_report import RequirementReport

        def pytest_configure(config):
            if not hasattr(config, "workerinput"):
                path, root = Path("report/r.json"), Path("sources")
                config.pluginmanager.register(RequirementReport(path, root, config.invocation_params.args))

        def pytest_collection_modifyitems(items):
            for item in items:
                item.user_properties.append(("requirement", "wire-6-1"))
        """
    )
    pytester.makepyfile(
        test_run="""
        import os, pytest
        def test_holds(): pass
        def test_fails(): assert False, "no"
        def test_is_skipped(): pytest.skip("not here")
        @pytest.mark.xfail(reason="later")
        def test_is_expected_to_fail(): assert False
        @pytest.mark.xfail(reason="later")
        def test_passes_unexpectedly(): pass
        def test_ends_its_worker(): os._exit(1)
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider", "--numprocesses=2")
    run = TestRun.read(pytester.path / "report" / "r.json")
    assert run is not None
    crash = run.tests.pop("test_run.py::test_ends_its_worker")
    assert crash.outcome == "failed"
    assert run.tests == {
        "test_run.py::test_holds": PASSED,
        "test_run.py::test_fails": Outcome("failed", "call: AssertionError: no"),
        "test_run.py::test_is_skipped": Outcome("skipped", "not here"),
        # An expected failure is no proof, whether it fails or not.
        "test_run.py::test_is_expected_to_fail": Outcome("failed", "expected to fail: later"),
        "test_run.py::test_passes_unexpectedly": Outcome("failed", "expected to fail: later"),
    }
    assert run.status == pytest.ExitCode.TESTS_FAILED
    assert "--numprocesses=2" in run.command


def test_cargo_output_gives_outcomes_by_binary() -> None:
    output = """\
     Running unittests src/lib.rs (target/release/deps/tensorpool_core-0123456789abcdef)
test shm::slot::tests::it_holds ... ok
test shm::slot::tests::it_panics - should panic ... FAILED
     Running tests/loom.rs (target/loom/release/deps/loom-0123456789abcdef)
test seqlock ... ignored, needs hours
test result: ok. 1 passed; 0 failed
"""
    assert parse(output.splitlines()) == {
        RUST_TEST: PASSED,
        "tensorpool_core::shm::slot::tests::it_panics": Outcome("failed", "FAILED"),
        "loom::seqlock": Outcome("skipped", "needs hours"),
    }


# --- verdicts


def test_requirement_is_proven_by_a_test_that_passed(repository: Repository) -> None:
    repository.python_test("wire-8.2-1")
    repository.rust_test("wire-8.2-2")
    repository.reports(PASSED, PASSED, rust=PASSED)
    result = repository.run("--json")
    assert result.status == 0, result.err
    assert result.verdicts() == {
        "wire-8.2-1": ("proven", []),
        "wire-8.2-2": ("proven", []),
        "wire-8.20-1": ("missing", []),
        "wire-9-1": ("untestable", ["binds a later version"]),
        "driver-1-1": ("missing", []),
    }
    text = repository.run().out
    assert "wire       8.2          2 of 2\n" in text
    assert "wire       8.20         0 of 1  wire-8.20-1 missing\n" in text
    assert "5 requirements: 2 proven, 1 untestable, 2 missing\n" in text
    assert "based on build/requirements.json: 2 tests, no long ones, 2026-01-02 03:04:05, pytest\n" in text


def test_failure_of_one_test_outweighs_the_success_of_others(repository: Repository) -> None:
    repository.python_test("wire-8.2-1")
    repository.rust_test("wire-8.2-1")
    repository.reports(PASSED, Outcome("failed", "call: no"), rust=PASSED)
    result = repository.run("--json")
    assert result.status == 1
    assert result.verdicts()["wire-8.2-1"] == ("failed", ["tests/test_marked.py::test_it: call: no"])
    repository.reports(PASSED, PASSED, rust=Outcome("failed", "FAILED"))
    result = repository.run("--quiet")
    assert result.status == 1
    assert "error: wire-8.2-1 failed: crates/core/src/shm/slot.rs:3: FAILED\n" in result.err


def test_skipped_requirement_is_reported_with_its_reason(repository: Repository) -> None:
    repository.complete(wire=["8.2"])
    repository.python_test("wire-8.2-1")
    repository.rust_test("wire-8.2-2")
    skipped = Outcome("skipped", "needs hugepages")
    repository.reports(skipped, skipped, rust=Outcome("skipped", "ignored"))
    result = repository.run("--quiet")
    assert result.status == 0, result.err
    assert "wire-8.2-1 skipped: tests/test_marked.py::test_it: needs hugepages\n" in result.out
    assert "wire-8.2-2 skipped: crates/core/src/shm/slot.rs:3: ignored\n" in result.out
    repository.reports(PASSED, skipped, rust=PASSED)
    assert "5 requirements: 2 proven, 1 untestable, 2 missing\n" in repository.run("--quiet").out


def test_long_tests_are_skipped_unless_they_ran(repository: Repository) -> None:
    repository.python_test("wire-8.2-1", is_long=True)
    repository.reports()
    result = repository.run("--json")
    assert result.status == 0, result.err
    reason = "tests/test_marked.py::test_it: long: run make test-long"
    assert result.verdicts()["wire-8.2-1"] == ("skipped", [reason])
    repository.reports(is_long=True)
    assert repository.run("--json").verdicts()["wire-8.2-1"][0] == "not run"


def test_partial_run_is_not_taken_for_a_whole_one(repository: Repository) -> None:
    repository.python_test("wire-8.2-1")
    repository.reports(PASSED)
    result = repository.run()
    assert result.status == 1
    partial = "the run was partial: 1 of 2 tests that name a requirement did not run"
    assert f"error: {partial}: tests/test_marked.py::test_it[2]" in result.err
    assert repository.run("--has-run").status == 1
    # `make test ARGS="-k …"` says so, and does not fail.
    accepted = repository.run("--partial")
    assert accepted.status == 0
    assert f"no verdict: {partial}" in accepted.err
    repository.reports(PASSED, PASSED)
    assert repository.run("--has-run").status == 0


def test_report_of_other_sources_is_not_used(repository: Repository) -> None:
    result = repository.run("--has-run")
    assert "a new test run is needed: build/requirements.json: no report\n" in result.err
    repository.python_test("wire-8.2-1")
    repository.reports(PASSED, PASSED)
    assert repository.run("--has-run").status == 0
    repository.write("tests/test_marked.py", "changed")
    result = repository.run()
    assert result.status == 1
    assert "error: build/requirements.json: the sources changed after the run of " in result.err
    assert "requirements-cargo.json" not in result.err


# --- deviations


def deviate(repository: Repository, deviation: str) -> None:
    text = REQUIREMENTS.replace("wire-8.2-1,MUST,8.2,a,,", f"wire-8.2-1,MUST,8.2,a,,{deviation}")
    repository.write("tests/conformance/requirements.csv", text)


def test_deviation_is_reported_with_its_decision(repository: Repository) -> None:
    repository.write("docs/decisions/slots.md", "# Slots\n\n## Why not: 8 bytes?\n\nwire-8.2-1 differs.\n")
    deviate(repository, "docs/decisions/slots.md#why-not-8-bytes")
    repository.python_test("wire-8.2-1")
    repository.reports(PASSED, PASSED)
    result = repository.run("--quiet")
    assert result.status == 0, result.err
    assert "wire-8.2-1 deviating: docs/decisions/slots.md#why-not-8-bytes\n" in result.out
    assert "5 requirements: 0 proven, 1 deviating, 1 untestable, 3 missing\n" in result.out


@pytest.mark.parametrize(
    ("deviation", "fault"),
    [
        ("docs/how-to/slots.md#a", "is not a page of docs/decisions/"),
        ("docs/decisions/slots.md", "names no anchor"),
        ("docs/decisions/other.md#a", "names a page that does not exist"),
        ("docs/decisions/slots.md#b", "names an anchor that the page does not have"),
        ("docs/decisions/slots.md#a", "names a page that does not mention the requirement"),
    ],
)
def test_deviation_without_a_decision_is_an_error(repository: Repository, deviation: str, fault: str) -> None:
    repository.write("docs/decisions/slots.md", '<a id="a"></a>wire-8.2-10 and wire-8.2-1.3 differ.\n')
    deviate(repository, deviation)
    repository.python_test("wire-8.2-1")
    result = repository.run("--marks")
    assert result.status == 1
    assert f"wire-8.2-1: the deviation {deviation!r} {fault}" in result.err


def test_deviation_needs_a_test_of_what_holds(repository: Repository) -> None:
    repository.write("docs/decisions/slots.md", "# A\nwire-8.2-1\n")
    deviate(repository, "docs/decisions/slots.md#a")
    result = repository.run("--marks")
    assert result.status == 1
    assert "wire-8.2-1 is listed as a deviation but has no test of what holds instead" in result.err


def test_anchors_are_those_of_github() -> None:
    text = '# Error ring: neither exists\n\n## `a_b`, and C\n<a id="x.y"></a>'
    assert anchors(text) == {"error-ring-neither-exists", "a_b-and-c", "x.y"}
