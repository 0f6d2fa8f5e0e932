"""The leak check: it reports each kind of leak, and nothing for a test without leaks.

Each test runs a small pytest session in a child process, because the tests in it have to fail.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from tests import leaks

ROOT = Path(__file__).resolve().parents[3]

CONFTEST = """
import pytest
import tests.conftest

tests.conftest.SETTLE_SECONDS = {settle}
pytest_plugins = ["tests.conftest"]

def pytest_configure(config):
    for marker in ("leaves_files(reason): …", "requirement(id): …", "long: …"):
        config.addinivalue_line("markers", marker)
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    """Runs a test file with our conftest; returns the failure text by test name."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)

    def run(source: str, *, settle: float = 0.2) -> dict[str, str]:
        pytester.makeconftest(CONFTEST.format(settle=settle))
        pytester.makepyfile(source)
        result = pytester.runpytest_subprocess("-rA", "-p", "no:randomly", "-p", "no:cacheprovider")
        text = result.stdout.str()
        names = re.findall(r"def (test_\w+)", source)
        reports: dict[str, str] = dict.fromkeys(names, "")
        for title, body in re.findall(r"^_+ (.+?) _+\n(.*?)(?=^[_=]{3,} )", text, re.MULTILINE | re.DOTALL):
            reports[title.rpartition(" ")[2]] += body
        for name in names:
            assert re.search(rf"^PASSED .*::{name}$", text, re.MULTILINE), text
        return reports

    return run


def test_each_kind_of_leak_is_reported(run) -> None:
    reports = run(
        """
        import ctypes, mmap, os, subprocess, sys, threading
        from pathlib import Path

        kept = []

        def test_descriptor():
            os.open("/etc/hostname", os.O_RDONLY)

        def test_pipe():
            kept.append(os.pipe())

        def test_python_thread():
            threading.Thread(target=threading.Event().wait, name="forgotten", daemon=True).start()

        def test_native_thread():
            libc = ctypes.CDLL(None)
            libc.pthread_create(ctypes.byref(ctypes.c_ulong()), None, libc.pause, None)

        def test_process():
            kept.append(subprocess.Popen(["sleep", "1000"]))

        def test_grandchild():
            # The shell is killed and reaped, but its child goes on.
            shell = subprocess.Popen(["sh", "-c", "sleep 1001 & echo started; wait"], stdout=subprocess.PIPE)
            assert shell.stdout.readline() == b"started\\n"
            shell.stdout.close()
            shell.kill()
            shell.wait()

        def test_shm_file():
            Path(f"/dev/shm/tensorpool-leaked-{os.getpid()}").touch()

        def test_shm_directory():
            Path(f"/dev/shm/tensorpool-leaked-{os.getpid()}.d/default/7").mkdir(parents=True)

        def test_media_driver_directory():
            Path(f"/dev/shm/aeron-leaked-{os.getpid()}").mkdir()

        def test_mapping(shm_base):
            path = shm_base / "region"
            path.write_bytes(bytes(4096))
            with path.open("rb") as file:
                kept.append(mmap.mmap(file.fileno(), 4096, prot=mmap.PROT_READ))
            path.unlink()

        def test_file_in_the_base_directory(shm_base):
            (shm_base / "default").mkdir()
            (shm_base / "default" / "header.ring").touch()

        def test_media_driver_that_stays(aeron_dir):
            aeron_dir.mkdir()
            (aeron_dir / "cnc.dat").touch()
        """
    )
    for leaked in leaks.SHM.glob("*-leaked-*"):
        leaks.remove(leaked)

    assert re.search(r"file descriptor \d+ → /etc/hostname", reports["test_descriptor"])
    assert len(re.findall(r"file descriptor \d+ → pipe:", reports["test_pipe"])) == 2
    assert re.search(r"thread \d+ '.*' \(Python thread 'forgotten'\)", reports["test_python_thread"])
    assert re.search(r"thread \d+ '.*' \(native\)", reports["test_native_thread"])
    assert re.search(r"process \d+ \(sleep 1000\)", reports["test_process"])
    assert re.search(r"process \d+ \(sleep 1001\)", reports["test_grandchild"])
    assert re.search(r"file /dev/shm/tensorpool-leaked-\d+ in shared memory", reports["test_shm_file"])
    # One line for the whole directory, not one for each entry.
    assert len(re.findall(r"/dev/shm/tensorpool-leaked-\d+\.d", reports["test_shm_directory"])) == 1
    assert re.search(r"directory /dev/shm/aeron-leaked-\d+ in sh", reports["test_media_driver_directory"])
    assert re.search(r"mapping of /dev/shm/tensorpool-test-\S+/region \(deleted\)", reports["test_mapping"])
    assert "default/header.ring" in reports["test_file_in_the_base_directory"]
    assert "cnc.dat" in reports["test_media_driver_that_stays"]
    assert all("leaked" in text or "left in" in text for text in reports.values())


def test_leaked_processes_are_ended(run) -> None:
    reports = run(
        """
        import subprocess
        def test_process():
            subprocess.Popen(["sleep", "1002"])
        """
    )
    pid = re.search(r"process (\d+) \(sleep 1002\)", reports["test_process"])
    assert pid
    assert not Path(f"/proc/{pid[1]}").exists()


def test_clean_tests_and_session_fixtures_report_no_leak(run) -> None:
    reports = run(
        """
        import multiprocessing, os, subprocess, threading, time
        from pathlib import Path
        import pytest

        @pytest.fixture(scope="session")
        def session_resources():
            stop = threading.Event()
            thread = threading.Thread(target=stop.wait, name="media driver")
            thread.start()
            process = subprocess.Popen(["sleep", "1003"])
            directory = Path(f"/dev/shm/aeron-session-{os.getpid()}")
            directory.mkdir()
            descriptor = os.open("/etc/hostname", os.O_RDONLY)
            yield
            stop.set(), thread.join(), process.kill(), process.wait(), directory.rmdir(), os.close(descriptor)

        def test_session_fixture(session_resources):
            pass

        def test_slow_ends():
            threading.Thread(target=time.sleep, args=(0.5,)).start()
            subprocess.Popen(["sleep", "0.5"])

        def test_cycle():
            class Holder:
                def __init__(self):
                    self.itself, self.descriptor = self, os.open("/etc/hostname", os.O_RDONLY)
                def __del__(self):
                    os.close(self.descriptor)
            Holder()

        def test_processes_that_are_joined():
            process = multiprocessing.get_context("spawn").Process(target=os.getpid)
            process.start()
            process.join()
            process.close()

        def test_private_directories(shm_base, aeron_dir, user_state_dir):
            assert shm_base.stat().st_mode & 0o7777 == 0o700
            assert not aeron_dir.exists()
            assert os.environ["XDG_STATE_HOME"] == str(user_state_dir)
            (shm_base / "header.ring").touch()
            (shm_base / "header.ring").unlink()

        @pytest.mark.leaves_files("killed in the middle, as a test of recovery does")
        def test_leaves_files_on_purpose(shm_base):
            (shm_base / "header.ring").touch()
        """,
        settle=10,
    )
    assert {name for name, text in reports.items() if "leaked" in text or "left in" in text} == set()
    assert not list(leaks.SHM.glob("tensorpool-test-*/header.ring"))


def test_failed_test_reports_no_leak_in_addition(pytester: pytest.Pytester, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeconftest(CONFTEST.format(settle=5))
    pytester.makepyfile(
        """
        import os, subprocess
        def test_fails():
            sleeper = subprocess.Popen(["sleep", "1004"])
            os.open("/etc/hostname", os.O_RDONLY)
            assert sleeper.pid == 0
        """
    )
    started = time.monotonic()
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(failed=1, errors=0)
    assert "sleep 1004" not in _commands()
    assert time.monotonic() - started < 60


def test_files_of_other_programs_are_foreign(shm_base: Path) -> None:
    # Process 1 runs and is not a descendant of this process.
    assert leaks.is_foreign(leaks.SHM / "tensorpool-test-1-aaaa" / "default")
    assert leaks.is_foreign(leaks.SHM / "tensorpool-chaos-1-aaaa-there" / "default")
    assert leaks.is_foreign(leaks.SHM / "aeron-chaos-1-aaaa" / "cnc.dat")
    assert not leaks.is_foreign(shm_base / "default")
    assert not leaks.is_foreign(leaks.SHM / "tensorpool-unmapped")


def test_free_stream_ids_are_unique(free_stream_id: int, free_stream_ids) -> None:
    given = [free_stream_id, *(free_stream_ids() for _ in range(1000))]
    assert len(set(given)) == 1001
    # Aeron's stream ids are signed and have 32 bits.
    assert max(given) < 2**31


def test_wait_until_returns_the_value_or_names_the_predicate(wait_until) -> None:
    values = iter([0, None, "ready"])
    assert wait_until(lambda: next(values)) == "ready"

    def a_second_driver():
        return []

    with pytest.raises(pytest.fail.Exception, match=r"a_second_driver did not become true within 0\.01 s"):
        wait_until(a_second_driver, timeout=0.01)


@pytest.mark.parametrize(("switch", "outcome"), [(None, "skipped"), ("1", "passed")])
def test_long_tests_run_only_with_the_variable(
    pytester: pytest.Pytester, monkeypatch, switch: str | None, outcome: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("TENSORPOOL_TEST_LONG", raising=False)
    if switch:
        monkeypatch.setenv("TENSORPOOL_TEST_LONG", switch)
    pytester.makeconftest(CONFTEST.format(settle=5))
    pytester.makepyfile("import pytest\n@pytest.mark.long\ndef test_it(): pass")
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(**{outcome: 1})


def _commands() -> str:
    commands = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                commands.append(Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
    return "\n".join(commands)
