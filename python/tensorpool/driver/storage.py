"""The driver's file work: regions are made, given a further epoch and removed, off the duty cycle.

Work for one stream is done in the order in which it was asked for, work for different streams side by side
on a few threads. Results are fetched by `poll`. While a stream has a directory the stream's lock is held,
the one that stand-alone producers take: the two never own the same stream.

The directories above a stream's regions: made with the rights that its users need, gone when empty.

`<base>/tensorpool-<user>/<namespace>/<stream>`; the epochs below are made natively.
"""

from __future__ import annotations

import grp
import json
import logging
import os
import pwd
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from .. import _native
from ..durable import replace_file
from ..errors import ConfigError, RegionCreateError, StreamBusy
from ..sbe.wire import ResponseCode
from ..shm import EpochFiles, remove_leftovers
from ..shm.epoch_files import user_name
from ..shm.ownership import epoch_mark, lock_stream, stream_state
from .actions import AssignFiles, FileResult, FilesFailed, FilesReady, FilesRemoved, MakeFiles, RemoveFiles
from .leases import Refusal
from .plan import Access, Layout

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def group_id(access: Access) -> int | None:
    """Raises ConfigError for a group that this machine does not know."""
    if access.group is None:
        return None
    try:
        return int(access.group) if access.group.isdecimal() else grp.getgrnam(access.group).gr_gid
    except KeyError:
        raise ConfigError(f"group {access.group!r}: there is no such group on this machine") from None


def owner_id(access: Access) -> int | None:
    """Raises ConfigError for a user that this machine does not know."""
    if access.owner is None:
        return None
    try:
        return int(access.owner) if access.owner.isdecimal() else pwd.getpwnam(access.owner).pw_uid
    except KeyError:
        raise ConfigError(f"owner {access.owner!r}: there is no such user on this machine") from None


class Directories:
    """The tree of one namespace. Safe to use from several threads."""

    def __init__(self, base: Path, place: str) -> None:
        self._base = base
        self.root = base / f"tensorpool-{user_name()}" / place
        # A directory that one stream leaves empty must not vanish while another stream's is made in it.
        self._lock = threading.Lock()

    def stream(self, stream_id: int) -> Path:
        return self.root / str(stream_id)

    def make(self, stream_id: int, access: Access) -> None:
        """Makes what is missing. Raises RegionCreateError."""
        group = group_id(access)
        if not self._base.is_dir():
            message = f"there is no base directory {self._base}; make it, or set another [shm] base_dir"
            raise RegionCreateError(message, reason="io")
        with self._lock:
            for directory in (self.root.parent, self.root):
                _ensure(directory, access.parent_mode, None, is_shared=True)
            _ensure(self.stream(stream_id), access.dir_mode, group, is_shared=False)

    def remove_if_empty(self, stream_id: int) -> None:
        with self._lock, suppress(OSError):
            for directory in (self.stream(stream_id), self.root, self.root.parent):
                directory.rmdir()

    def streams(self) -> list[int]:
        """Ids of the streams that have a directory, whoever made it."""
        with suppress(OSError):
            return sorted(
                int(entry.name)
                for entry in os.scandir(self.root)
                if entry.name.isascii() and entry.name.isdecimal() and entry.is_dir(follow_symlinks=False)
            )
        return []


def _ensure(directory: Path, mode: int, group: int | None, *, is_shared: bool) -> None:
    try:
        with suppress(FileExistsError):
            directory.mkdir(mode=0o700)
            # A strict umask may have left us out of our own directory.
            directory.chmod(0o700)
        descriptor = os.open(directory, _DIRECTORY)
    except OSError as error:
        raise RegionCreateError(f"{directory}: {error.strerror}", reason="io") from None
    try:
        found = os.fstat(descriptor)
        # Someone who may write in the base could have made this directory first, as a trap.
        if found.st_uid != os.geteuid():
            raise RegionCreateError(
                f"{directory} belongs to user id {found.st_uid}, not to this process; remove it or choose "
                "another base directory",
                reason="foreign_owner",
            )
        if group is not None and found.st_gid != group:
            os.fchown(descriptor, -1, group)
        # A shared one is only ever widened: other streams, or another namespace, may need what it has.
        wanted = found.st_mode & 0o7777 | mode if is_shared else mode
        # After a change of group, which clears the setgid bit.
        os.fchmod(descriptor, wanted)
    except OSError as error:
        if isinstance(error, RegionCreateError):
            raise
        raise RegionCreateError(f"{directory}: {error.strerror}", reason="io") from None
    finally:
        os.close(descriptor)


_LOG = logging.getLogger(__name__)
_WORKERS: Final = 4
_CODES: Final = {
    "invalid": ResponseCode.INVALID_PARAMS,
    "not_hugepages": ResponseCode.REJECTED,
    "held": ResponseCode.REJECTED,
}
"""What native reasons mean to a client; every other one is INTERNAL_ERROR."""

FileJob = MakeFiles | AssignFiles | RemoveFiles


class Storage:
    """All files of one driver."""

    def __init__(
        self, base: Path, place: str, state: Path, *, stale_after_ns: int, prefault: bool = False
    ) -> None:
        """`stale_after_ns`: silence after which the files of a dead process are nobody's."""
        self._base = base
        self._stale_after_ns = stale_after_ns
        self._prefault = prefault
        self._place = place
        self._provisions = state / "provisions.json"
        self._marks = stream_state(base, place)
        self._directories = Directories(base, place)
        self._changed = threading.Condition()
        # A stream is in here while one of its jobs runs or waits, and in `_ready` while none of them runs.
        self._jobs: dict[int, deque[Callable[[], FileResult | None]]] = {}
        self._ready: deque[int] = deque()
        self._workers = 0
        self._results: deque[FileResult] = deque()
        # Below: each stream's entries are touched only by that stream's jobs, one at a time.
        self._locks: dict[int, _native.FileLock] = {}
        self._held: dict[int, set[Path]] = {}

    # --- asked by the agent

    def submit(self, job: FileJob) -> None:
        """Does it soon; the result comes by `poll`."""
        match job:
            case MakeFiles(plan):
                self._queue(plan.stream_id, lambda: self._make(job))
            case AssignFiles(plan):
                self._queue(plan.stream_id, lambda: self._assign(job))
            case RemoveFiles(stream_id):
                self._queue(stream_id, lambda: self._remove(job))

    def poll(self) -> list[FileResult]:
        """What has been done since the last look."""
        found = []
        while self._results:
            found.append(self._results.popleft())
        return found

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being done and no result waits."""
        with self._changed:
            return not self._jobs and not self._results

    def sweep(self, *, at_once: bool = False) -> None:
        """Removes what dead owners left, of streams that nobody else has now (decisions 19 and 26).
        `at_once`: also what was in use a moment ago."""
        silence_ns = -1 if at_once else self._stale_after_ns
        for stream_id in self._directories.streams():
            self._queue(stream_id, partial(self._sweep, stream_id, silence_ns))

    def load_provisions(self) -> object:
        """What was saved last; None if there is nothing, or nothing that can be read."""
        try:
            return json.loads(self._provisions.read_text("utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            _LOG.warning("%s cannot be read, so its provisions are forgotten: %s", self._provisions, error)
            return None

    def save_provisions(self, dumped: dict[str, Any]) -> None:
        """Keeps them for the next start: written beside and moved into place, in the order of the calls."""
        # No stream has the id 0, so this is a queue of its own.
        self._queue(0, lambda: self._save(dumped))

    def close(self) -> None:
        """Waits for what is being done, then removes every directory and gives up every stream."""
        with self._changed:
            self._changed.wait_for(lambda: not self._workers)
        for stream_id, directories in list(self._held.items()):
            for directory in list(directories):
                self._remove(RemoveFiles(stream_id, directory))
        for lock in self._locks.values():
            lock.release()
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
            if self._workers == _WORKERS:
                return
            self._workers += 1
        try:
            # Not a pool of the standard library: that one takes no work once the interpreter is ending, and a
            # program that ends without a close would leave its memory behind.
            threading.Thread(target=self._work, name="tp-driver-files", daemon=True).start()
        except RuntimeError:
            # From then on Python starts no threads either.
            self._work()

    def _work(self) -> None:
        """Does what there is to do, stream by stream, until there is nothing left."""
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
                # A job answers for its own errors. One that does not must not take the others with it.
                _LOG.exception("file work for stream %d went wrong", stream_id)
                result = None
            if result is not None:
                self._results.append(result)
            with self._changed:
                if self._jobs[stream_id]:
                    self._ready.append(stream_id)
                else:
                    del self._jobs[stream_id]

    # --- jobs, each on one of the threads

    def _make(self, job: MakeFiles) -> FileResult:
        plan, stream_id, made = job.plan, job.plan.stream_id, None
        try:
            self._own(stream_id)
            self._directories.make(stream_id, plan.access)
            epoch = epoch_mark(self._marks, stream_id).next()
            created = _native.create_epoch(
                base=self._base,
                user=user_name(),
                namespace=self._place,
                stream_id=stream_id,
                epoch=epoch,
                nslots=plan.layout.nslots,
                pools=plan.layout.pools,
                require_hugepages=plan.hugepages,
                prefault=self._prefault,
                dir_mode=plan.access.dir_mode,
                file_mode=plan.access.file_mode,
                group=group_id(plan.access),
            )
            made = EpochFiles.from_native(created, epoch, plan.layout.nslots)
            self._held.setdefault(stream_id, set()).add(made.directory)
            _give_to(owner_id(plan.access), made.directory)
        except Exception as error:
            if made is not None:
                self._unlink(stream_id, made.directory)
            self._disown_if_empty(stream_id)
            return FilesFailed(stream_id, _refusal(error))
        return FilesReady(stream_id, made)

    def _assign(self, job: AssignFiles) -> FileResult:
        plan, files = job.plan, job.files
        stream_id, held = plan.stream_id, self._held.setdefault(plan.stream_id, set())
        layout = Layout.of_files(files)
        try:
            epoch = epoch_mark(self._marks, stream_id).next()
            # Known under both names, until it is known which one it has.
            held.add(files.directory.with_name(str(epoch)))
            assigned = _native.assign_epoch(
                files.directory,
                epoch=epoch,
                stream_id=stream_id,
                nslots=layout.nslots,
                pools=[(pool.pool_id, pool.stride_bytes) for pool in files.pools],
                require_hugepages=plan.hugepages,
            )
            held.discard(files.directory)
        except Exception as error:
            for directory in [path for path in held if int(path.name) >= files.epoch]:
                self._unlink(stream_id, directory)
            self._disown_if_empty(stream_id)
            return FilesFailed(stream_id, _refusal(error))
        return FilesReady(stream_id, EpochFiles.from_native(assigned, epoch, layout.nslots))

    def _remove(self, job: RemoveFiles) -> FileResult:
        self._unlink(job.stream_id, job.directory)
        self._disown_if_empty(job.stream_id)
        return FilesRemoved(job.stream_id, job.directory)

    def _sweep(self, stream_id: int, stale_after_ns: int) -> None:
        # Also beside our own files: what a killed driver left was still young when we took the stream.
        if stream_id not in self._locks:
            try:
                # Somebody else's stream is theirs to sweep.
                self._locks[stream_id] = lock_stream(self._marks, self._place, stream_id, holder=_holder())
            except (StreamBusy, OSError):
                return
        removed = remove_leftovers(self._directories.stream(stream_id), stale_after_ns=stale_after_ns)
        if removed:
            _LOG.info("stream %d: removed what a dead owner left, epochs %s", stream_id, removed)
        self._disown_if_empty(stream_id)

    def _save(self, dumped: dict[str, Any]) -> None:
        try:
            replace_file(self._provisions, json.dumps(dumped).encode())
        except OSError as error:
            _LOG.error("%s: provisions are not kept for the next start: %s", self._provisions, error)

    # --- who owns what

    def _own(self, stream_id: int) -> None:
        """Takes the stream's lock, and removes what its last owner may have left."""
        if stream_id not in self._locks:
            self._locks[stream_id] = lock_stream(self._marks, self._place, stream_id, holder=_holder())
            remove_leftovers(self._directories.stream(stream_id), stale_after_ns=self._stale_after_ns)

    def _unlink(self, stream_id: int, directory: Path) -> None:
        try:
            with suppress(FileNotFoundError):
                _native.remove_epoch(directory)
        except OSError as error:
            _LOG.error("%s cannot be removed: %s", directory, error)
        self._held.get(stream_id, set()).discard(directory)

    def _disown_if_empty(self, stream_id: int) -> None:
        """A stream without a directory belongs to nobody."""
        if self._held.get(stream_id):
            return
        self._held.pop(stream_id, None)
        self._directories.remove_if_empty(stream_id)
        lock = self._locks.pop(stream_id, None)
        if lock is not None:
            lock.release()


def _give_to(uid: int | None, directory: Path) -> None:
    """The files, not the directory: whoever owns that could replace what is in it."""
    if uid is not None:
        for path in directory.iterdir():
            os.chown(path, uid, -1, follow_symlinks=False)


def _holder() -> str:
    return f"the driver, process {os.getpid()}"


def _refusal(error: Exception) -> Refusal:
    """What went wrong, as it is told to those who wait."""
    match error:
        case StreamBusy():
            return Refusal(ResponseCode.REJECTED, str(error))
        case RegionCreateError():
            return Refusal(_CODES.get(error.reason, ResponseCode.INTERNAL_ERROR), str(error))
        case ConfigError() | OSError():
            return Refusal(ResponseCode.INTERNAL_ERROR, str(error))
    _LOG.exception("files could not be made", exc_info=error)
    return Refusal(ResponseCode.INTERNAL_ERROR, f"{type(error).__name__}: {error}")
