"""Finds what a test leaves behind: descriptors, threads, processes, mappings, files in shared memory.

A `Snapshot` names what exists at one moment. Two of them, one before and one after a test, give the
leaks. Ends are not instantaneous (a joined native thread stays in /proc for a moment, a media driver
removes its directory last), so `settle` looks again and again until nothing is left or time is up.

Everything comes from /proc: it sees native threads and descriptors that Python knows nothing about.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

SHM = Path("/dev/shm")
# Names that our code and Aeron's give to what they put there; the rest belongs to other programs.
SHM_NAMES = re.compile(r"^(tensorpool|aeron)")
# Directories made by the fixtures carry the process that made them: see `made_elsewhere`.
OF_A_PROGRAM = re.compile(r"^(?:tensorpool|aeron-tensorpool|aeron)-(?:demo|bench)-")
TEST_DIRECTORY = re.compile(r"^(?:tensorpool|aeron)-test-(\d+)-")
# Opened once, kept for the life of the process by the interpreter itself.
KEPT_OPEN = ("/dev/urandom", "/dev/random")
PR_SET_CHILD_SUBREAPER = 36
# Place of the start time among the fields of a stat file that follow the name.
START_TIME = 19


def adopt_orphans() -> None:
    """Makes this process the parent of its descendants' orphans.

    A test that kills a role with SIGKILL would otherwise lose sight of the children that role had.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


# Threads of libraries that stay once the library is imported: pyarrow's allocator has one.
_FOR_LIFE = frozenset({"jemalloc_bg_thd"})


@dataclass(frozen=True)
class Snapshot:
    """What this process holds, each kind as key → words for a person."""

    descriptors: Mapping[tuple[int, str], str] = field(default_factory=dict)
    threads: Mapping[tuple[int, str], str] = field(default_factory=dict)
    processes: Mapping[tuple[int, str], str] = field(default_factory=dict)
    mappings: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def take(cls) -> Snapshot:
        return cls(
            descriptors=_descriptors(),
            threads=_threads(),
            processes=_processes(),
            mappings=_mappings(),
            files=_files(),
        )

    def since(self, before: Snapshot) -> Leaks:
        """What is in this snapshot and was not in the other one."""
        files = {key: text for key, text in self.files.items() if key not in before.files}
        return Leaks(
            descriptors=[text for key, text in self.descriptors.items() if key not in before.descriptors],
            threads=[text for key, text in self.threads.items() if key not in before.threads],
            processes={key: text for key, text in self.processes.items() if key not in before.processes},
            mappings=[text for key, text in self.mappings.items() if key not in before.mappings],
            files=_outermost({key: text for key, text in files.items() if not made_elsewhere(Path(key))}),
        )


@dataclass
class Leaks:
    """What a test left behind, by kind."""

    descriptors: list[str] = field(default_factory=list)
    threads: list[str] = field(default_factory=list)
    processes: dict[tuple[int, str], str] = field(default_factory=dict)
    mappings: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)

    def lines(self) -> list[str]:
        found = [f"file descriptor {text}" for text in self.descriptors]
        found += [f"thread {text}" for text in self.threads]
        found += [f"process {text}" for text in self.processes.values()]
        found += [f"mapping of {text}" for text in self.mappings]
        found += [f"{text} in shared memory" for text in self.files.values()]
        return sorted(found)

    def end_processes(self) -> None:
        """Kills the leaked processes, so that one bad test does not spoil the ones after it."""
        for pid, started in self.processes:
            # The start time tells a process from a later one with the same number.
            if _start_time(f"/proc/{pid}/stat") == started:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)

    def __bool__(self) -> bool:
        return bool(self.lines())


def settle(before: Snapshot, *, timeout: float) -> Leaks:
    """The leaks since `before` that are still there when `timeout` seconds have passed."""
    deadline = time.monotonic() + timeout
    pause = 0.001
    leaks = Snapshot.take().since(before)
    while leaks and time.monotonic() < deadline:
        # A cycle may be all that holds an object; collecting is too slow to do after every test.
        gc.collect()
        time.sleep(pause)
        pause = min(pause * 2, 0.1)
        leaks = Snapshot.take().since(before)
    return leaks


def remaining(directory: Path, *, timeout: float) -> list[str]:
    """What is still in a directory when `timeout` seconds have passed; empty too if there is none."""
    left: list[str] = []

    def nothing_left() -> bool:
        left[:] = sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))
        return not left

    if not wait_for(nothing_left, timeout=timeout):
        gc.collect()
        nothing_left()
    return left


def wait_for(condition: Callable[[], object], *, timeout: float) -> bool:
    """Looks until the condition holds; False when it does not within the time."""
    deadline = time.monotonic() + timeout
    pause = 0.001
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause)
        pause = min(pause * 2, 0.1)
    return True


def made_elsewhere(path: Path) -> bool:
    """Does an entry of /dev/shm belong to a program beside this one?

    /dev/shm is one for the whole machine: two test runs, or a test run and a real system, must not
    see leaks in each other. Asked of suspects alone, since it reads the maps of every process.
    """
    root = SHM / path.relative_to(SHM).parts[0]
    if TEST_DIRECTORY.match(root.name):
        return _is_of_another_run(root.name)
    if OF_A_PROGRAM.match(root.name):
        # A demonstration or a benchmark that someone runs beside the tests; their own tests look after them.
        return True
    ours = _descendants() | {os.getpid()}
    for process in Path("/proc").iterdir():
        if not process.name.isdigit() or int(process.name) in ours:
            continue
        with contextlib.suppress(OSError):
            for line in (process / "maps").read_text().splitlines():
                if line.partition("/")[2].startswith(f"{root}"[1:]):
                    return True
    return False


def _is_of_another_run(name: str) -> bool:
    """Only a test run makes such directories, and each looks after its own."""
    match = TEST_DIRECTORY.match(name)
    return match is not None and int(match[1]) != os.getpid()


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _descriptors() -> dict[tuple[int, str], str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # the descriptor of this very listing
            continue
        # Py4J opens and drops connections to a Spark that runs whenever it has something to say.
        if target.startswith("socket:") and "py4j.java_gateway" in sys.modules:
            continue
        if target not in KEPT_OPEN:
            found[int(name), target] = f"{name} → {target}"
    return found


def _threads() -> dict[tuple[int, str], str]:
    python_names = {thread.native_id: thread.name for thread in threading.enumerate()}
    found = {}
    for name in os.listdir("/proc/self/task"):
        started = _start_time(f"/proc/self/task/{name}/stat")
        if not started:
            continue
        tid = int(name)
        try:
            native_name = Path(f"/proc/self/task/{name}/comm").read_text().strip()
        except OSError:
            continue
        if native_name in _FOR_LIFE:
            continue
        kind = f"Python thread {python_names[tid]!r}" if tid in python_names else "native"
        found[tid, started] = f"{tid} {native_name!r} ({kind})"
    return found


def _processes() -> dict[tuple[int, str], str]:
    found = {}
    for pid in _descendants():
        fields = _stat(f"/proc/{pid}/stat")
        # A zombie has ended, and only its number is left. An empty command line would not tell: a process
        # that is just being started has one too.
        if not fields or fields[0] in {"Z", "X"}:
            continue
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        found[pid, fields[START_TIME]] = f"{pid} ({command.strip()[:200]})"
    return found


def _descendants() -> set[int]:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (fields := _stat(f"/proc/{name}/stat")):
            children.setdefault(int(fields[1]), []).append(int(name))
    found: set[int] = set()
    queue = [os.getpid()]
    while queue:
        born = children.get(queue.pop(), [])
        found.update(born)
        queue.extend(born)
    return found


def _mappings() -> dict[str, str]:
    # Not Aeron's: an embedded media driver keeps a log buffer mapped for seconds after its last use.
    found = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split(maxsplit=5)[-1]
        if path.startswith(f"{SHM}/tensorpool"):
            found[line.split()[0] + path] = path
    return found


def _files() -> dict[str, str]:
    found = {}
    for name in os.listdir(SHM):
        # Other test runs look after their own, and have many.
        if not SHM_NAMES.match(name) or _is_of_another_run(name):
            continue
        root = SHM / name
        found[str(root)] = _described(root)
        # A media driver's own directory changes behind a test's back (log buffers linger for
        # seconds after their publication), so of Aeron's only the directory as a whole counts.
        if root.name.startswith("tensorpool") and root.is_dir():
            for directory, directories, names in os.walk(root):
                for inner in (*directories, *names):
                    path = Path(directory, inner)
                    found[str(path)] = _described(path)
    return found


def _described(path: Path) -> str:
    return f"{'directory' if path.is_dir() else 'file'} {path}"


def _outermost(files: dict[str, str]) -> dict[str, str]:
    """Leaves out what lies inside another entry: one leaked directory is one line."""
    return {
        key: text
        for key, text in files.items()
        if not any(str(parent) in files for parent in Path(key).parents)
    }


def _stat(path: str) -> list[str]:
    """The fields of a stat file after the name, which may itself hold spaces and brackets."""
    # Read for every process of the machine, before and after each test: by the shortest way.
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        return os.read(descriptor, 4096).rpartition(b")")[2].decode().split()
    except OSError:
        return []
    finally:
        os.close(descriptor)


def _start_time(path: str) -> str:
    fields = _stat(path)
    return fields[START_TIME] if fields else ""
