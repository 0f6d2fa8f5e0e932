"""Detection of leaks: descriptors, threads, processes, mappings, files in shared memory.

A `Snapshot` lists the resources at one moment. The difference of two snapshots, before and after a test, are
the leaks. Some resources end late (a joined native thread stays in /proc for a moment, a media driver removes
its directory last), so `settle` repeats the comparison until there are no leaks or time is up.

All resources are read from /proc, which also shows native threads and descriptors unknown to Python.
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
from dataclasses import dataclass, field, replace
from pathlib import Path

SHM = Path("/dev/shm")
# Names of files of TensorPool and Aeron; all others belong to other programs.
SHM_NAMES = re.compile(r"^(tensorpool|aeron)")
# The names of directories of the fixtures contain the process id of the test run: see `is_foreign`.
PROGRAM_DIRECTORY = re.compile(r"^(?:tensorpool|aeron-tensorpool|aeron)-(?:demo|bench|clean|wheel)-")
TEST_DIRECTORY = re.compile(r"^(?:tensorpool|aeron)-(?:test|chaos|leaked)-(\d+)")
# The interpreter opens these once and keeps them.
KEPT_OPEN = ("/dev/urandom", "/dev/random")
PR_SET_CHILD_SUBREAPER = 36
# Index of the start time among the fields of a stat file after the name.
START_TIME = 19


def adopt_orphans() -> None:
    """Makes this process the parent of its descendants' orphans.

    Children of a process that a test kills would otherwise not be found.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


# Threads that a library keeps after its import: pyarrow's allocator has one.
_LIBRARY_THREADS = frozenset({"jemalloc_bg_thd", "tokio-rt-worker"})


@dataclass(frozen=True)
class Snapshot:
    """Resources of this process by kind, each as key → text."""

    descriptors: Mapping[tuple[int, str], str] = field(default_factory=dict)
    threads: Mapping[tuple[int, str], str] = field(default_factory=dict)
    processes: Mapping[tuple[int, str], str] = field(default_factory=dict)
    mappings: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def take(cls) -> Snapshot:
        """Lists the resources of this moment."""
        return cls(
            descriptors=_descriptors(),
            threads=_threads(),
            processes=_processes(),
            mappings=_mappings(),
            files=_files(),
        )

    def without_clients(self) -> Snapshot:
        """The snapshot without native threads, sockets and what they poll.

        The client of an object store starts them on demand, and keeps them for the life of the process.
        """
        descriptors = {
            key: text
            for key, text in self.descriptors.items()
            if not key[1].startswith(("anon_inode:", "socket:"))
        }
        threads = {key: text for key, text in self.threads.items() if not text.endswith("(native)")}
        return replace(self, descriptors=descriptors, threads=threads)

    def since(self, before: Snapshot) -> Leaks:
        """Resources of this snapshot that are not in the other."""
        files = {key: text for key, text in self.files.items() if key not in before.files}
        return Leaks(
            descriptors=[text for key, text in self.descriptors.items() if key not in before.descriptors],
            threads=[text for key, text in self.threads.items() if key not in before.threads],
            processes={key: text for key, text in self.processes.items() if key not in before.processes},
            mappings=[text for key, text in self.mappings.items() if key not in before.mappings],
            files=_outermost({key: text for key, text in files.items() if not is_foreign(Path(key))}),
        )


@dataclass
class Leaks:
    """Leaked resources by kind."""

    descriptors: list[str] = field(default_factory=list)
    threads: list[str] = field(default_factory=list)
    processes: dict[tuple[int, str], str] = field(default_factory=dict)
    mappings: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """One line of text for each leak."""
        lines = [f"file descriptor {text}" for text in self.descriptors]
        lines += [f"thread {text}" for text in self.threads]
        lines += [f"process {text}" for text in self.processes.values()]
        lines += [f"mapping of {text}" for text in self.mappings]
        lines += [f"{text} in shared memory" for text in self.files.values()]
        return sorted(lines)

    def in_directories(self, own: re.Pattern[str]) -> Leaks:
        """The leaks without entries of /dev/shm that have other names: another program may have left them."""
        files = {
            key: text for key, text in self.files.items() if own.match(Path(key).relative_to(SHM).parts[0])
        }
        return replace(self, files=files)

    def end_processes(self) -> None:
        """Kills the leaked processes, so that they do not affect later tests."""
        for pid, started in self.processes:
            # The start time distinguishes a process from a later one with the same id.
            if _start_time(f"/proc/{pid}/stat") == started:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)

    def __bool__(self) -> bool:
        return bool(self.lines())


def settle(before: Snapshot, *, timeout: float, with_clients: bool = True) -> Leaks:
    """Leaks since `before` that still exist after `timeout` seconds."""

    def find() -> Leaks:
        snapshot = Snapshot.take()
        return (snapshot if with_clients else snapshot.without_clients()).since(before)

    deadline = time.monotonic() + timeout
    pause = 0.001
    leaks = find()
    while leaks and time.monotonic() < deadline:
        # Only a reference cycle may keep an object alive. Collecting after every test would be too slow.
        gc.collect()
        time.sleep(pause)
        pause = min(pause * 2, 0.1)
        leaks = find()
    return leaks


def remaining(directory: Path, *, timeout: float) -> list[str]:
    """Paths that are still in a directory after `timeout` seconds; empty if the directory does not exist."""
    paths: list[str] = []

    def is_empty() -> bool:
        paths[:] = sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))
        return not paths

    if not wait_for(is_empty, timeout=timeout):
        gc.collect()
        is_empty()
    return paths


def wait_for(condition: Callable[[], object], *, timeout: float) -> bool:
    """Waits until the condition holds; returns False at the timeout."""
    deadline = time.monotonic() + timeout
    pause = 0.001
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause)
        pause = min(pause * 2, 0.1)
    return True


def is_foreign(path: Path) -> bool:
    """Whether an entry of /dev/shm belongs to another program.

    The whole machine shares /dev/shm: two test runs, or a test run and a real system, must not take each
    other's files for leaks. Called only for possible leaks, because it reads the maps of every process.
    """
    root = SHM / path.relative_to(SHM).parts[0]
    if TEST_DIRECTORY.match(root.name):
        return _is_of_another_run(root.name)
    if PROGRAM_DIRECTORY.match(root.name):
        # A demo, benchmark or clean installation that runs beside the tests; their own tests check for leaks.
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
    """Whether a test directory belongs to another test run, which checks it itself."""
    match = TEST_DIRECTORY.match(name)
    return match is not None and int(match[1]) != os.getpid()


def remove(path: Path) -> None:
    """Removes a file or a directory tree."""
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
        # Py4J opens and closes connections to Spark at any time.
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
        if native_name in _LIBRARY_THREADS:
            continue
        kind = f"Python thread {python_names[tid]!r}" if tid in python_names else "native"
        found[tid, started] = f"{tid} {native_name!r} ({kind})"
    return found


def _processes() -> dict[tuple[int, str], str]:
    found = {}
    for pid in _descendants():
        fields = _stat(f"/proc/{pid}/stat")
        # A zombie has ended. An empty command line would be no criterion: a starting process has one too.
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
    descendants: set[int] = set()
    queue = [os.getpid()]
    while queue:
        pids = children.get(queue.pop(), [])
        descendants.update(pids)
        queue.extend(pids)
    return descendants


def _mappings() -> dict[str, str]:
    # Aeron's mappings do not count: an embedded media driver keeps log buffers mapped for seconds.
    found = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split(maxsplit=5)[-1]
        if path.startswith(f"{SHM}/tensorpool"):
            found[line.split()[0] + path] = path
    return found


def _files() -> dict[str, str]:
    found = {}
    for name in os.listdir(SHM):
        # Other test runs check their own files, of which there are many.
        if not SHM_NAMES.match(name) or _is_of_another_run(name):
            continue
        root = SHM / name
        found[str(root)] = _describe(root)
        # Log buffers in a media driver's directory outlive their publication by seconds, so only the
        # directory as a whole counts.
        if root.name.startswith("tensorpool") and root.is_dir():
            for directory, directories, names in os.walk(root):
                for inner in (*directories, *names):
                    path = Path(directory, inner)
                    found[str(path)] = _describe(path)
    return found


def _describe(path: Path) -> str:
    return f"{'directory' if path.is_dir() else 'file'} {path}"


def _outermost(files: dict[str, str]) -> dict[str, str]:
    """Removes entries inside other entries: a leaked directory is one line."""
    return {
        key: text
        for key, text in files.items()
        if not any(str(parent) in files for parent in Path(key).parents)
    }


def _stat(path: str) -> list[str]:
    """Fields of a stat file after the name, which may contain spaces and brackets."""
    # Plain system calls: this runs for every process of the machine before and after each test.
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
