"""The command `make conformance`: its counts and its errors.

Each test writes a small repository with requirements, tests and crates.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools import conformance

ROOT = Path(__file__).resolve().parents[3]

REQUIREMENTS = """\
id,level,section,summary,untestable
wire-8.2-1,MUST,8.2,a,
wire-8.2-2,SHOULD,8.2,b,
wire-8.20-1,MUST,8.20,c,
wire-9-1,MUST,9,d,binds a later version
driver-1-1,MUST,1,e,
"""


class Repository:
    """A small repository."""

    def __init__(self, root: Path) -> None:
        self.root = root / "main"
        self.write("pyproject.toml", '[tool.pytest.ini_options]\nmarkers = ["requirement(id): …"]\n')
        self.write("tests/conformance/requirements.csv", REQUIREMENTS)
        self.complete(wire=[], driver=[])
        self.write("tests/test_nothing.py", "")

    def write(self, path: str, text: str) -> None:
        """Writes a file."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def complete(self, **sections: list[str]) -> None:
        """Declares sections complete."""
        lines = [f"{document} = {json.dumps(names)}" for document, names in sections.items()]
        self.write("tests/conformance/complete.toml", "[complete]\n" + "\n".join(lines))

    def python_test(self, *ids: str) -> None:
        """Writes a test with these requirement ids."""
        marker = f"@pytest.mark.requirement({', '.join(map(repr, ids))})"
        self.write(
            "tests/test_marked.py",
            f"import pytest\n\n{marker}\n@pytest.mark.parametrize('n', [1, 2])\ndef test_it(n):\n    1 / 0\n",
        )

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs the command on this repository."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        environment.pop("PYTEST_ADDOPTS", None)
        return subprocess.run(
            [sys.executable, "-m", "tools.conformance", "--root", str(self.root), *arguments],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


def test_marked_python_tests_are_counted_without_being_run(repository: Repository) -> None:
    repository.python_test("wire-8.2-1")
    result = repository.run()
    assert result.returncode == 0, result.stderr
    assert "wire       8.2          1 of 2  wire-8.2-2\n" in result.stdout
    assert "wire       9            0 of 0\n" in result.stdout
    assert result.stdout.endswith("1 of 4 have a test; 1 cannot be tested\n")


def test_rust_tests_are_counted_by_the_comment_above_them(repository: Repository) -> None:
    repository.write(
        "crates/core/src/lib.rs",
        """
        /// Says why.
        /// requirement: wire-8.2-1, wire-8.2-2
        #[cfg(target_os = "linux")]
        #[test]
        fn it_holds() {}
        """,
    )
    result = repository.run("--json")
    assert result.returncode == 0, result.stderr
    tests = {entry["id"]: entry["tests"] for entry in json.loads(result.stdout)["requirements"]}
    assert tests["wire-8.2-1"] == tests["wire-8.2-2"] == ["crates/core/src/lib.rs:3"]
    assert tests["driver-1-1"] == []


def test_rust_requirement_without_a_test_is_an_error(repository: Repository) -> None:
    repository.write("crates/core/src/lib.rs", "/// requirement: wire-8.2-1\npub fn not_a_test() {}\n")
    result = repository.run()
    assert result.returncode == 1
    assert "crates/core/src/lib.rs:1: a requirement line without a #[test] below it" in result.stderr


@pytest.mark.parametrize(
    ("sections", "gaps"),
    [
        ({"wire": ["8.2"]}, "wire §8.2 is declared complete but has no test for wire-8.2-2"),
        ({"wire": ["*"]}, "wire §* is declared complete but has no test for wire-8.2-2, wire-8.20-1"),
        ({"wire": ["8"]}, "wire §8 is declared complete but has no test for wire-8.2-2, wire-8.20-1"),
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
    result = repository.run()
    assert result.returncode == 1
    assert gaps in result.stderr


def test_complete_section_with_all_tests_passes(repository: Repository) -> None:
    repository.python_test("wire-8.2-1", "wire-8.2-2")
    # Section 9 has only untestable requirements, which need no test.
    repository.complete(wire=["8.2", "9"])
    assert repository.run().returncode == 0


def test_unknown_id_is_an_error(repository: Repository) -> None:
    repository.python_test("wire-8.2-99")
    result = repository.run()
    assert result.returncode == 1
    assert "no requirement 'wire-8.2-99', named by tests/test_marked.py::test_it" in result.stderr


def test_test_of_an_untestable_requirement_is_an_error(repository: Repository) -> None:
    repository.python_test("wire-9-1")
    result = repository.run()
    assert result.returncode == 1
    assert "wire-9-1 is listed as untestable but has a test" in result.stderr


def test_failed_collection_is_an_error(repository: Repository) -> None:
    repository.write("tests/test_broken.py", "import no_such_module_anywhere\n")
    result = repository.run()
    assert result.returncode == 1
    assert "no_such_module_anywhere" in result.stderr


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
    result = repository.run()
    assert result.returncode == 1
    assert "wire-9-2 is in the specifications but not in requirements.csv" in result.stderr
    assert "driver-1-1 is in requirements.csv but not in the specifications" in result.stderr
    assert "wire-8.2-2: level and section are ('MUST', '8.2'), not ('SHOULD', '8.2')" in result.stderr


def test_requirement_list_is_well_formed() -> None:
    requirements = conformance.read_requirements()
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


def test_requirement_report_lists_outcomes(pytester: pytest.Pytester, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeconftest('pytest_plugins = ["tests.conftest"]')
    pytester.makepyfile(
        test_run="""
        import pytest
        @pytest.mark.requirement("wire-6-1", "wire-9-1")
        def test_holds(): pass
        @pytest.mark.requirement("wire-9-1")
        def test_fails(): assert False
        @pytest.mark.requirement("wire-9-1")
        def test_is_skipped(): pytest.skip("not here")
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider", "--requirement-report=report/r.json")
    report = json.loads((pytester.path / "report" / "r.json").read_text())
    assert report == {
        "wire-6-1": {"test_run.py::test_holds": "passed"},
        "wire-9-1": {
            "test_run.py::test_holds": "passed",
            "test_run.py::test_fails": "failed",
            "test_run.py::test_is_skipped": "skipped",
        },
    }
