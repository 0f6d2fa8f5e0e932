"""Fixtures and hooks of all tests: leak check, private directories, stream ids, requirement markers."""

from __future__ import annotations

import itertools
import os
import secrets
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import numpy as np  # noqa: F401  its threads start with the import, so before the first snapshot
import pytest
from hypothesis import HealthCheck, settings

from tests import leaks
from tools.conformance.pytest_report import RequirementReport
from tools.conformance.requirements import ROOT, known_ids

# Threads and processes that are still running this long after a test count as leaked.
SETTLE_SECONDS = 10.0

# The duration of an example depends more on the load of the machine than on the code.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# An xdist worker inherits the terminal width of its controller; commands that a test runs must not.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.pop("COLUMNS", None)

# A shell makes background jobs ignore SIGINT, and nohup SIGHUP. Child processes inherit that, but tests send
# both signals.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

pytest_plugins = ["pytester", "tests.s3_server", "tests.scheduling"]

call_failed = pytest.StashKey[bool]()

# Far above every default id, and different for concurrent test runs on one machine.
_stream_ids = itertools.count(1_000_000 + os.getpid() % 100_000 * 1_000)


# --- leaks


@pytest.fixture(scope="session", autouse=True)
def _session_processes() -> None:
    """Starts processes that live as long as the session, so that no test is charged with them."""
    leaks.adopt_orphans()
    resource_tracker.ensure_running()


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest, _session_processes: None) -> Iterator[None]:
    """Fails a test that leaks a descriptor, thread, process, mapping or shared-memory file.

    Fixtures of wider scope are set up earlier, so the first snapshot contains their resources.
    """
    before = leaks.Snapshot.take()
    yield
    # The traceback of a failed test keeps its objects alive: they are not leaks.
    # Spark keeps workers, sockets and threads for its next query.
    uses_spark = "spark" in request.fixturenames
    uses_store = "s3_server" in request.fixturenames
    if request.node.stash.get(call_failed, False):
        if not uses_spark:
            leaks.settle(before, timeout=0).end_processes()
        return
    leaked = leaks.settle(before, timeout=0 if uses_spark else SETTLE_SECONDS, with_clients=not uses_store)
    if uses_spark:
        leaked.processes.clear()
        leaked.threads.clear()
        leaked.descriptors.clear()
    if request.node.get_closest_marker("leaves_files"):
        leaked.files.clear()
    if leaked:
        leaked.end_processes()
        pytest.fail("the test leaked:\n  " + "\n  ".join(leaked.lines()), pytrace=False)


# --- private directories and ids


@pytest.fixture
def shm_base(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A private directory in shared memory. Files left in it count as leaked."""
    with private_directory(request.node, "tensorpool") as directory:
        directory.mkdir(mode=0o700)
        yield directory


@pytest.fixture
def aeron_dir(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A path in shared memory for one media driver, which creates and removes the directory."""
    with private_directory(request.node, "aeron") as directory:
        yield directory


@contextmanager
def private_directory(node: pytest.Item, kind: str) -> Iterator[Path]:
    """A unique path under /dev/shm, which is always removed; files left in it fail the test."""
    # By the process id in the name, concurrent test runs recognise their own directories.
    path = leaks.SHM / f"{kind}-test-{os.getpid()}-{secrets.token_hex(4)}"
    yield path
    excused = node.stash.get(call_failed, False) or node.get_closest_marker("leaves_files")
    left = leaks.remaining(path, timeout=0 if excused else SETTLE_SECONDS)
    leaks.remove(path)
    if left and not excused:
        pytest.fail(f"the test left in {path}:\n  " + "\n  ".join(left), pytrace=False)


@pytest.fixture(autouse=True)
def user_state_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Private directory of epoch marks and locks, separate from the user's and from that of other tests."""
    directory = tmp_path / "state"
    directory.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_STATE_HOME", str(directory))
    return directory


@pytest.fixture
def standalone_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes standalone the default mode of contexts in this test and its child processes."""
    monkeypatch.setenv("TENSORPOOL_CONTEXT__MODE", "standalone")


@pytest.fixture
def free_stream_ids() -> Callable[[], int]:
    """A function that returns a new stream id at each call."""
    return lambda: next(_stream_ids)


@pytest.fixture
def free_stream_id(free_stream_ids: Callable[[], int]) -> int:
    """A stream id that no other test uses."""
    return free_stream_ids()


@pytest.fixture
def wait_until() -> Callable[..., Any]:
    """`wait_until(predicate, timeout=60)`: returns the first true value, or fails with the predicate's
    name."""

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
        help="write a JSON file with the outcomes of the tests that name requirements",
    )


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--requirement-report")
    # xdist workers send their reports to the controller, which writes the file.
    if path and not config.option.collectonly and not hasattr(config, "workerinput"):
        arguments = tuple(map(str, config.invocation_params.args))
        config.pluginmanager.register(RequirementReport(Path(path), ROOT, arguments))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    known = known_ids()
    errors = [
        f"{item.nodeid}: no requirement {name!r}"
        for item in items
        for name in requirement_ids(item)
        if name not in known
    ]
    if errors:
        raise pytest.UsageError("\n".join(errors))
    for item in items:
        item.user_properties += [("requirement", name) for name in requirement_ids(item)]
    if os.environ.get("TENSORPOOL_TEST_LONG") != "1":
        skip = pytest.mark.skip(reason="long: set TENSORPOOL_TEST_LONG=1, as `make test-long` does")
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(skip)


def requirement_ids(item: pytest.Item) -> list[str]:
    """Requirement ids of the markers of a test."""
    return [name for marker in item.iter_markers("requirement") for name in marker.args]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if report.when == "call":
        item.stash[call_failed] = report.failed
    # The output of a test may not be valid text, but xdist sends reports as text.
    report.sections = [(name, text.encode("utf-8", "replace").decode()) for name, text in report.sections]
    return report
