"""What every test stands on: a check for leaks, private places, ids of its own, requirement markers."""

from __future__ import annotations

import itertools
import json
import os
import secrets
import signal
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import numpy as np  # noqa: F401  its threads, if it has any, start with the import: before the first snapshot
import pytest
from hypothesis import HealthCheck, settings

from tests import leaks
from tools.conformance import known_ids

# Threads and processes get this long to end after a test before they count as leaked.
SETTLE_SECONDS = 10.0

# How long an example takes says more about who else is on the machine than about the code.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# A worker is told the width of its controller's terminal; commands that a test runs have none.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.pop("COLUMNS", None)

# A shell makes what is in the background deaf to Ctrl-C, nohup to a hang-up, and so all that they start;
# tests send both.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

pytest_plugins = ["pytester", "tests.scheduling"]

call_failed = pytest.StashKey[bool]()

# Far above every default id, and different for test runs side by side on one machine.
_stream_ids = itertools.count(1_000_000 + os.getpid() % 100_000 * 1_000)


# --- leaks


@pytest.fixture(scope="session", autouse=True)
def _one_for_all_tests() -> None:
    """What the first test to need it would start, and would then be blamed for."""
    leaks.adopt_orphans()
    resource_tracker.ensure_running()


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest, _one_for_all_tests: None) -> Iterator[None]:
    """Fails a test that leaves a descriptor, thread, process, mapping or shared-memory file behind.

    Fixtures of wider scope are set up before this one, so what they hold is in the first snapshot.
    """
    before = leaks.Snapshot.take()
    yield
    # A failed test keeps its frames, and what they hold, in the traceback: that is no second finding.
    # Spark keeps workers, sockets and threads for its next query.
    uses_spark = "spark" in request.fixturenames
    if request.node.stash.get(call_failed, False):
        if not uses_spark:
            leaks.settle(before, timeout=0).end_processes()
        return
    found = leaks.settle(before, timeout=0 if uses_spark else SETTLE_SECONDS)
    if uses_spark:
        found.processes.clear()
        found.threads.clear()
        found.descriptors.clear()
    if request.node.get_closest_marker("leaves_files"):
        found.files.clear()
    if found:
        found.end_processes()
        pytest.fail("the test leaked:\n  " + "\n  ".join(found.lines()), pytrace=False)


# --- places and ids of a test's own


@pytest.fixture
def shm_base(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A private directory in shared memory. What is left in it at the end is a leak."""
    with private_directory(request.node, "tensorpool") as directory:
        directory.mkdir(mode=0o700)
        yield directory


@pytest.fixture
def aeron_dir(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A path in shared memory for one media driver, which makes the directory and removes it."""
    with private_directory(request.node, "aeron") as directory:
        yield directory


@contextmanager
def private_directory(node: pytest.Item, kind: str) -> Iterator[Path]:
    """A unique path under /dev/shm, removed at the end whatever is in it; leftovers fail the test."""
    # The process id in the name lets test runs side by side tell their own from the others'.
    path = leaks.SHM / f"{kind}-test-{os.getpid()}-{secrets.token_hex(4)}"
    yield path
    excused = node.stash.get(call_failed, False) or node.get_closest_marker("leaves_files")
    left = leaks.remaining(path, timeout=0 if excused else SETTLE_SECONDS)
    leaks.remove(path)
    if left and not excused:
        pytest.fail(f"the test left in {path}:\n  " + "\n  ".join(left), pytrace=False)


@pytest.fixture(autouse=True)
def user_state_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Epoch marks and locks go here: a test sees and touches nothing of the user's, nor of another test's."""
    home = tmp_path / "state"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_STATE_HOME", str(home))
    return home


@pytest.fixture
def standalone_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contexts of this test and of its child processes do without an SHM driver, unless they ask for one."""
    monkeypatch.setenv("TENSORPOOL_CONTEXT__MODE", "standalone")


@pytest.fixture
def free_stream_ids() -> Callable[[], int]:
    """Gives another stream id at each call; none is given twice."""
    return lambda: next(_stream_ids)


@pytest.fixture
def free_stream_id(free_stream_ids: Callable[[], int]) -> int:
    """A stream id that no other test uses."""
    return free_stream_ids()


@pytest.fixture
def wait_until() -> Callable[..., Any]:
    """`wait_until(predicate, timeout=60)`: the predicate's first true value, or a failure that names it."""

    def wait(predicate: Callable[[], Any], timeout: float = 60) -> Any:
        values: list[Any] = [None]

        def holds() -> Any:
            values[0] = predicate()
            return values[0]

        if not leaks.wait_for(holds, timeout=timeout):
            name = getattr(predicate, "__qualname__", repr(predicate))
            pytest.fail(f"{name} did not become true within {timeout:g} s (last value: {values[0]!r})")
        return values[0]

    return wait


# --- requirements and long tests


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--requirement-report",
        metavar="PATH",
        help="write a JSON file: requirement id → tests that prove it → outcome",
    )


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--requirement-report")
    # Tests run in worker processes tell the one that started them.
    if path and not config.option.collectonly and not hasattr(config, "workerinput"):
        config.pluginmanager.register(RequirementReport(Path(path)))


class RequirementReport:
    """Requirement id → tests that prove it → outcome, as JSON."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._proofs: defaultdict[str, dict[str, str]] = defaultdict(dict)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # Setup speaks first ("passed" or "skipped"); a later failure, teardown's too, has the last word.
        if report.when == "setup" or not report.passed:
            for key, name in report.user_properties:
                if key == "requirement":
                    self._proofs[str(name)][report.nodeid] = report.outcome

    def pytest_sessionfinish(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(dict(sorted(self._proofs.items())), indent=1) + "\n")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    known = known_ids()
    wrong = [
        f"{item.nodeid}: no requirement {name!r}"
        for item in items
        for name in requirement_ids(item)
        if name not in known
    ]
    if wrong:
        raise pytest.UsageError("\n".join(wrong))
    for item in items:
        item.user_properties += [("requirement", name) for name in requirement_ids(item)]
    if os.environ.get("TENSORPOOL_TEST_LONG") != "1":
        skip = pytest.mark.skip(reason="long: set TENSORPOOL_TEST_LONG=1, as `make test-long` does")
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(skip)


def requirement_ids(item: pytest.Item) -> list[str]:
    return [name for marker in item.iter_markers("requirement") for name in marker.args]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if report.when == "call":
        item.stash[call_failed] = report.failed
    # What a test wrote may be no text, and a report travels as text from worker to worker.
    report.sections = [(name, text.encode("utf-8", "replace").decode()) for name, text in report.sections]
    return report
