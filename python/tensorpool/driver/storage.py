"""The driver's file work: creation, assignment and removal of regions, and the directories above them.

A few threads do the work. Jobs of one stream run in the order of their submission, jobs of different streams
in parallel. `poll` returns the results. While a stream has a directory, the driver holds the stream's lock,
which standalone producers use too: a stream never has both owners.

Directories are `<base>/tensorpool-<user>/<namespace>/<stream>`; the native side creates the epochs below.
`BaseDirs` chooses the base: one for most streams, one on hugepages, and those of single streams.
"""

from __future__ import annotations

import grp
import json
import logging
import os
import pwd
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from .. import _native
from ..durable import replace_file
from ..errors import ConfigError, RegionCreateError, StreamBusy
from ..sbe.wire import ResponseCode
from ..shm import EpochFiles, EpochSpec, create_epoch, remove_leftovers
from ..shm.epoch_files import RegionAccess, is_hugetlbfs, user_name
from ..shm.numa import memory_on, node_of, numa_nodes
from ..shm.ownership import epoch_mark, lock_stream, stream_state
from .actions import AssignFiles, FileResult, FilesFailed, FilesReady, FilesRemoved, MakeFiles, RemoveFiles
from .config import DriverSettings
from .leases import Refusal
from .plan import Access, Provisions, StreamLayout, StreamPlan


@dataclass(frozen=True, slots=True)
class BaseDirs:
    """Where the regions of each stream are created."""

    default: Path
    hugepages: Path | None = None
    """For streams on hugepages; None: they are created below the default too."""
    on_hugepages: frozenset[Path] = frozenset()
    """Those on hugetlbfs."""
    others: tuple[Path, ...] = ()
    """Those of single streams."""

    @classmethod
    def probe(cls, default: Path, settings: DriverSettings) -> BaseDirs:
        """The base directories of these settings, as they are mounted now."""
        hugepages = settings.hugepages_dir
        configured = dict.fromkeys(
            stream.base_dir for stream in settings.streams if stream.base_dir is not None
        )
        others = tuple(configured)
        known = [default, *others, *([] if hugepages is None else [hugepages])]
        return cls(default, hugepages, frozenset(base for base in known if is_hugetlbfs(base)), others)

    @property
    def all(self) -> tuple[Path, ...]:
        """All base directories, each once."""
        return tuple(dict.fromkeys((self.default, *self.others, *_present(self.hugepages))))

    def base_dir(self, plan: StreamPlan) -> Path:
        """The base directory of a stream."""
        if plan.base_dir is not None:
            return plan.base_dir
        return self.hugepages if plan.hugepages and self.hugepages is not None else self.default

    def has_hugepages(self, plan: StreamPlan) -> bool:
        """Whether the regions of a stream are on hugepages."""
        return self.base_dir(plan) in self.on_hugepages


def _present(base: Path | None) -> Iterable[Path]:
    return () if base is None else (base,)


_LOG = logging.getLogger(__name__)
_DIRECTORY_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PRIVATE_MODE: Final = 0o700
_MAKE_ATTEMPTS: Final = 100
_MODE_MASK: Final = 0o7777
MAX_STORAGE_THREADS: Final = 4
"""Threads that make and remove files at the same time."""
# No stream has the id 0: its queue orders the writes of the provisions file.
_PROVISIONS_QUEUE: Final = 0
_CODES: Final = {
    "invalid": ResponseCode.INVALID_PARAMS,
    "not_hugepages": ResponseCode.REJECTED,
    "no_hugepages": ResponseCode.REJECTED,
    "held": ResponseCode.REJECTED,
}
"""Response codes of native reasons; every other reason is INTERNAL_ERROR."""

FileJob = MakeFiles | AssignFiles | RemoveFiles


def group_id(access: Access) -> int | None:
    """The id of the configured group. Raises ConfigError for an unknown group."""
    if access.group is None:
        return None
    try:
        return int(access.group) if access.group.isdecimal() else grp.getgrnam(access.group).gr_gid
    except KeyError:
        raise ConfigError(
            f"group {access.group!r} does not exist on this machine; create it, or change the setting"
        ) from None


def owner_id(access: Access) -> int | None:
    """The id of the configured owner. Raises ConfigError for an unknown user."""
    if access.owner is None:
        return None
    try:
        return int(access.owner) if access.owner.isdecimal() else pwd.getpwnam(access.owner).pw_uid
    except KeyError:
        raise ConfigError(
            f"owner {access.owner!r} does not exist on this machine; create the user, or change the setting"
        ) from None


class StreamDirectories:
    """The directories of one namespace. Several threads may use them."""

    def __init__(self, base: Path, namespace: str) -> None:
        self._base = base
        self.root = base / f"tensorpool-{user_name()}" / namespace
        # Removal of an empty directory must not race with the creation of another stream's directory in it.
        self._lock = threading.Lock()

    def stream(self, stream_id: int) -> Path:
        """The directory of a stream."""
        return self.root / str(stream_id)

    def make(self, stream_id: int, access: Access) -> None:
        """Creates missing directories of a stream. Raises RegionCreateError."""
        group = group_id(access)
        if not self._base.is_dir():
            message = f"there is no base directory {self._base}; create it, or set another [shm] base_dir"
            raise RegionCreateError(message, reason="io")
        for attempts_left in reversed(range(_MAKE_ATTEMPTS)):
            try:
                with self._lock:
                    for directory in (self.root.parent, self.root):
                        _ensure(directory, access.parent_mode, None, is_shared=True)
                    _ensure(self.stream(stream_id), access.dir_mode, group, is_shared=False)
                return
            except FileNotFoundError as error:
                # Another process, or another object like this one, has removed an empty directory meanwhile.
                if not attempts_left:
                    raise RegionCreateError(f"{error.filename}: {error.strerror}", reason="io") from None

    def remove_if_empty(self, stream_id: int) -> None:
        """Removes the directory of a stream, and those above it, if they are empty."""
        with self._lock, suppress(OSError):
            for directory in (self.stream(stream_id), self.root, self.root.parent):
                directory.rmdir()

    def streams(self) -> list[int]:
        """Ids of the streams that have a directory."""
        with suppress(OSError):
            return sorted(
                int(entry.name)
                for entry in os.scandir(self.root)
                if entry.name.isascii() and entry.name.isdecimal() and entry.is_dir(follow_symlinks=False)
            )
        return []


def _ensure(directory: Path, mode: int, group: int | None, *, is_shared: bool) -> None:
    """Raises FileNotFoundError if the directory above it is gone, otherwise RegionCreateError."""
    try:
        with suppress(FileExistsError):
            directory.mkdir(mode=_PRIVATE_MODE)
            # A strict umask may deny this process the use of its own directory.
            directory.chmod(_PRIVATE_MODE)
        descriptor = os.open(directory, _DIRECTORY_FLAGS)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RegionCreateError(f"{directory}: {error.strerror}", reason="io") from None
    try:
        status = os.fstat(descriptor)
        # Another user with write access to the base could have created this directory first.
        if status.st_uid != os.geteuid():
            raise RegionCreateError(
                f"{directory} belongs to user id {status.st_uid}, not to this process; remove it or choose "
                "another base directory",
                reason="foreign_owner",
            )
        if group is not None and status.st_gid != group:
            os.fchown(descriptor, -1, group)
        # A shared directory only gains permissions: other streams or namespaces may need those it has.
        new_mode = status.st_mode & _MODE_MASK | mode if is_shared else mode
        # After fchown, which clears the setgid bit.
        os.fchmod(descriptor, new_mode)
    except OSError as error:
        if isinstance(error, RegionCreateError):
            raise
        raise RegionCreateError(f"{directory}: {error.strerror}", reason="io") from None
    finally:
        os.close(descriptor)


class Storage:
    """All files of one driver, and the threads that work on them."""

    def __init__(
        self, bases: BaseDirs, namespace: str, state: Path, *, stale_after_ns: int, prefault: bool = False
    ) -> None:
        """`namespace` is the qualified one. `stale_after_ns`: age of the activity timestamp after which the
        files of a dead process may be removed."""
        self._bases = bases
        self._stale_after_ns = stale_after_ns
        self._prefault = prefault
        self._namespace = namespace
        self._numa_nodes = numa_nodes()
        self._provisions = state / "provisions.json"
        # A standalone producer knows the marks and the lock of its own base directory only. So a stream of
        # this driver is locked in all of them, wherever its files are, and its epochs grow in all of them.
        self._states = tuple(stream_state(base, namespace) for base in bases.all)
        self._directories = {base: StreamDirectories(base, namespace) for base in bases.all}
        self._changed = threading.Condition()
        # A stream is a key while one of its jobs runs or waits, and in `_ready` while none of them runs.
        self._jobs: dict[int, deque[Callable[[], FileResult | None]]] = {}
        self._ready: deque[int] = deque()
        self._workers = 0
        self._results: deque[FileResult] = deque()
        # Only the jobs of a stream, one at a time, use the stream's entries of these two.
        self._locks: dict[int, list[_native.FileLock]] = {}
        self._owned: dict[int, set[Path]] = {}

    # --- for the agent

    def submit(self, job: FileJob) -> None:
        """Starts a job. `poll` returns its result."""
        match job:
            case MakeFiles(plan):
                self._queue(plan.stream_id, lambda: self._make(job))
            case AssignFiles(plan):
                self._queue(plan.stream_id, lambda: self._assign(job))
            case RemoveFiles(stream_id):
                self._queue(stream_id, lambda: self._remove(job))

    def poll(self) -> list[FileResult]:
        """Returns and removes the results since the last call."""
        results = []
        while self._results:
            results.append(self._results.popleft())
        return results

    @property
    def is_idle(self) -> bool:
        """Whether no job runs and `poll` would return nothing."""
        with self._changed:
            return not self._jobs and not self._results

    def sweep(self, *, at_once: bool = False) -> None:
        """Removes leftovers of dead owners, in streams without another owner (decisions 19 and 26).
        `at_once`: also files with fresh activity timestamps."""
        stale_after_ns = -1 if at_once else self._stale_after_ns
        streams = {
            stream_id for directories in self._directories.values() for stream_id in directories.streams()
        }
        for stream_id in sorted(streams):
            self._queue(stream_id, partial(self._sweep, stream_id, stale_after_ns))

    def load_provisions(self) -> object:
        """The saved provisions; None if the file is missing or unreadable."""
        try:
            return json.loads(self._provisions.read_text("utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            _LOG.warning("%s cannot be read, so its provisions are lost: %s", self._provisions, error)
            return None

    def save_provisions(self, dumped: Provisions) -> None:
        """Saves provisions for the next start. The file is replaced atomically, in the order of the calls."""
        self._queue(_PROVISIONS_QUEUE, lambda: self._save(dumped))

    def close(self) -> None:
        """Waits for running jobs, then removes all directories and releases all streams.

        Jobs that wait are dropped, except for saved provisions: a flood of requests may have queued thousands
        of regions, and all files are removed below anyway.
        """
        with self._changed:
            for stream_id in self._ready:
                if stream_id != _PROVISIONS_QUEUE:
                    del self._jobs[stream_id]
            self._ready = deque(stream_id for stream_id in self._ready if stream_id == _PROVISIONS_QUEUE)
            for stream_id, jobs in self._jobs.items():
                if stream_id != _PROVISIONS_QUEUE:
                    jobs.clear()
            self._changed.wait_for(lambda: not self._workers)
        for stream_id, directories in list(self._owned.items()):
            for directory in list(directories):
                self._remove(RemoveFiles(stream_id, directory))
        for locks in self._locks.values():
            _release(locks)
        self._locks.clear()
        self._results.clear()

    # --- the queue of each stream

    def _queue(self, stream_id: int, job: Callable[[], FileResult | None]) -> None:
        with self._changed:
            if stream_id in self._jobs:
                self._jobs[stream_id].append(job)
                return
            self._jobs[stream_id] = deque([job])
            self._ready.append(stream_id)
            if self._workers == MAX_STORAGE_THREADS:
                return
            self._workers += 1
        try:
            # Not a ThreadPoolExecutor: it accepts no work while the interpreter shuts down, and a program
            # that ends without a close would leave its files behind.
            threading.Thread(target=self._work, name="tp-driver-files", daemon=True).start()
        except RuntimeError:
            # Later in the shutdown Python starts no threads either.
            self._work()

    def _work(self) -> None:
        """Runs jobs, one stream at a time, until none is left."""
        while True:
            with self._changed:
                if not self._ready:
                    self._workers -= 1
                    self._changed.notify_all()
                    return
                stream_id = self._ready.popleft()
                job = self._jobs[stream_id].popleft()
            try:
                result = job()
            except Exception:
                # Jobs handle their own errors. An unexpected error must not end the worker.
                _LOG.exception("file work for stream %d failed", stream_id)
                result = None
            if result is not None:
                self._results.append(result)
            with self._changed:
                if self._jobs[stream_id]:
                    self._ready.append(stream_id)
                else:
                    del self._jobs[stream_id]

    # --- jobs, on the worker threads

    def _make(self, job: MakeFiles) -> FileResult:
        plan, stream_id, files = job.plan, job.plan.stream_id, None
        base = self._bases.base_dir(plan)
        try:
            self._acquire(stream_id)
            self._directories[base].make(stream_id, plan.access)
            epoch = self._next_epoch(stream_id)
            with memory_on(plan.numa_node, self._numa_nodes):
                files = create_epoch(
                    EpochSpec(
                        base,
                        self._namespace,
                        stream_id,
                        epoch,
                        plan.layout.nslots,
                        plan.layout.pools,
                        RegionAccess(
                            plan.access.dir_mode,
                            plan.access.file_mode,
                            group_id(plan.access),
                            plan.hugepages,
                        ),
                        prefault=self._prefault,
                    )
                )
            self._owned.setdefault(stream_id, set()).add(files.directory)
            files = replace(files, numa_node=node_of(files.paths, self._numa_nodes))
            set_owner(owner_id(plan.access), files.directory)
        except Exception as error:
            if files is not None:
                self._unlink(stream_id, files.directory)
            self._release_if_empty(stream_id)
            return FilesFailed(stream_id, _refusal(error))
        return FilesReady(stream_id, files)

    def _assign(self, job: AssignFiles) -> FileResult:
        plan, files = job.plan, job.files
        stream_id, owned = plan.stream_id, self._owned.setdefault(plan.stream_id, set())
        layout = StreamLayout.from_files(files)
        try:
            epoch = self._next_epoch(stream_id)
            # The set has both names until the native side has renamed the directory.
            owned.add(files.directory.with_name(str(epoch)))
            assigned = _native.assign_epoch(
                files.directory,
                epoch=epoch,
                stream_id=stream_id,
                nslots=layout.nslots,
                pools=files.pools,
                require_hugepages=plan.hugepages,
            )
            owned.discard(files.directory)
        except Exception as error:
            for directory in [path for path in owned if int(path.name) >= files.epoch]:
                self._unlink(stream_id, directory)
            self._release_if_empty(stream_id)
            return FilesFailed(stream_id, _refusal(error))
        renamed = EpochFiles.from_native(assigned, epoch, layout.nslots)
        return FilesReady(stream_id, replace(renamed, numa_node=files.numa_node))

    def _remove(self, job: RemoveFiles) -> FileResult:
        self._unlink(job.stream_id, job.directory)
        self._release_if_empty(job.stream_id)
        return FilesRemoved(job.stream_id, job.directory)

    def _sweep(self, stream_id: int, stale_after_ns: int) -> None:
        # Streams of this driver are swept too: files of a killed driver may have been fresh at the start.
        if stream_id not in self._locks:
            try:
                self._lock(stream_id)
            except (StreamBusy, OSError):
                # Another process owns the stream, and removes its leftovers.
                return
        removed = self._remove_leftovers(stream_id, stale_after_ns)
        if removed:
            _LOG.info("stream %d: removed epochs %s of a dead owner", stream_id, removed)
        self._release_if_empty(stream_id)

    def _save(self, dumped: Provisions) -> None:
        try:
            replace_file(self._provisions, json.dumps(dumped).encode())
        except OSError as error:
            _LOG.error("%s: provisions could not be saved for the next start: %s", self._provisions, error)

    # --- ownership

    def _acquire(self, stream_id: int) -> None:
        """Takes the stream's lock, and removes leftovers of its last owner."""
        if stream_id not in self._locks:
            self._lock(stream_id)
            self._remove_leftovers(stream_id, self._stale_after_ns)

    def _lock(self, stream_id: int) -> None:
        """Takes the stream's locks in all base directories, or none. Raises StreamBusy."""
        locks: list[_native.FileLock] = []
        try:
            for state in self._states:
                locks.append(lock_stream(state, self._namespace, stream_id, holder=_holder()))
        except BaseException:
            _release(locks)
            raise
        self._locks[stream_id] = locks

    def _next_epoch(self, stream_id: int) -> int:
        """The next epoch of a locked stream, on disk for every base directory before it is returned."""
        first, *others = (epoch_mark(state, stream_id) for state in self._states)
        epoch = first.next(after=max((mark.last() for mark in others), default=0))
        for mark in others:
            mark.record(epoch)
        return epoch

    def _remove_leftovers(self, stream_id: int, stale_after_ns: int) -> list[int]:
        return [
            epoch
            for directories in self._directories.values()
            for epoch in remove_leftovers(directories.stream(stream_id), stale_after_ns=stale_after_ns)
        ]

    def _unlink(self, stream_id: int, directory: Path) -> None:
        try:
            with suppress(FileNotFoundError):
                _native.remove_epoch(directory)
        except OSError as error:
            _LOG.error("%s cannot be removed: %s", directory, error)
        self._owned.get(stream_id, set()).discard(directory)

    def _release_if_empty(self, stream_id: int) -> None:
        """Releases the lock of a stream without directories."""
        if self._owned.get(stream_id):
            return
        self._owned.pop(stream_id, None)
        for directories in self._directories.values():
            directories.remove_if_empty(stream_id)
        _release(self._locks.pop(stream_id, []))


def set_owner(uid: int | None, directory: Path) -> None:
    """Changes the owner of the files, not of the directory: its owner could replace the files."""
    if uid is not None:
        for path in directory.iterdir():
            os.chown(path, uid, -1, follow_symlinks=False)


def _release(locks: list[_native.FileLock]) -> None:
    for lock in locks:
        lock.release()


def _holder() -> str:
    return f"the driver, process {os.getpid()}"


def _refusal(error: Exception) -> Refusal:
    """The refusal of the attaches that waited for these files."""
    match error:
        case StreamBusy():
            return Refusal(ResponseCode.REJECTED, str(error))
        case RegionCreateError():
            return Refusal(_CODES.get(error.reason, ResponseCode.INTERNAL_ERROR), str(error))
        case ConfigError() | OSError():
            return Refusal(ResponseCode.INTERNAL_ERROR, str(error))
    _LOG.exception("files could not be created", exc_info=error)
    return Refusal(ResponseCode.INTERNAL_ERROR, f"{type(error).__name__}: {error}")
