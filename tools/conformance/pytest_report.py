"""The pytest plugin that writes the report of a test run."""

from __future__ import annotations

import os
import shlex
import time
from pathlib import Path

import pytest

from tools.conformance.run_report import Outcome, TestRun, fingerprint


class RequirementReport:
    """Outcomes of the tests that name requirements, and of all that failed.

    Under xdist the workers send their reports to the controller, which has this plugin.
    """

    def __init__(self, path: Path, root: Path, arguments: tuple[str, ...]) -> None:
        self._path = path
        self._root = root
        self._command = shlex.join(["pytest", *arguments])
        self._fingerprint = fingerprint(root)
        self._tests: dict[str, Outcome] = {}
        # A report from an earlier run must not outlive a run that was killed.
        path.unlink(missing_ok=True)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keeps the outcome. A test has passed only once its call has: if a worker ends in the middle of
        a test, xdist reports a failure without the properties of the test."""
        is_marked = any(key == "requirement" for key, _ in report.user_properties)
        if hasattr(report, "wasxfail"):
            # A test that is expected to fail proves nothing, whatever it did.
            outcome = Outcome("failed", f"expected to fail: {report.wasxfail}")
        elif report.failed:
            outcome = Outcome("failed", f"{report.when}: {_last_line(report)}")
        elif report.skipped:
            outcome = Outcome("skipped", _skip_reason(report))
        elif report.when == "call":
            outcome = Outcome("passed")
        else:
            return
        if is_marked or outcome.outcome == "failed":
            self._tests[report.nodeid] = outcome

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Writes the report."""
        TestRun(
            command=self._command,
            finished=time.strftime("%Y-%m-%d %H:%M:%S"),
            fingerprint=self._fingerprint,
            status=int(exitstatus),
            long=os.environ.get("TENSORPOOL_TEST_LONG") == "1",
            tests=dict(sorted(self._tests.items())),
        ).write(self._path)


def _skip_reason(report: pytest.TestReport) -> str:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return reason.removeprefix("Skipped: ")


def _last_line(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(report.longrepr)
    return (text.strip().splitlines() or [""])[0][:200]
