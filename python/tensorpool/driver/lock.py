"""Exclusion of drivers: locks of a namespace and a control stream, and the Aeron counter of a driver.

A namespace has one driver. A control stream has one driver too: requests name no namespace, so two drivers
would both respond. The locks end with their process and name their holder. They belong to a user; the drivers
of other users on the same control stream are found by their Aeron counters.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from .. import _native
from ..clock import SYSTEM_CLOCK, Clock
from ..durable import state_dir, state_path
from ..errors import DriverAlreadyRunning, LockHeld, MediaDriverError
from ..runtime.counters import read_aeron_counters
from ..shm.epoch_files import is_alive, user_name
from ..shm.ownership import base_digest

# struct flock on 64-bit Linux: type, whence, start, length, pid.
_FLOCK = struct.Struct("@hhqqi4x")
# A holder writes its identity right after it has locked the file: a reader in between polls again.
_POLLS: Final = 50
_POLL_S: Final = 0.002
_MAX_HOLDER_BYTES: Final = 4096
_LABEL: Final = "tensorpool-driver: namespace {namespace}, control stream {control}"
_LABEL_PATTERN: Final = re.compile(
    r"tensorpool-driver: namespace (?P<namespace>\S+), control stream (?P<control>\d+)"
)


@dataclass(frozen=True, slots=True)
class Holder:
    """The process of a driver, as written in its lock file."""

    pid: int = 0
    user: str = ""
    host: str = ""
    namespace: str = ""
    aeron_dir: str = ""
    control_stream_id: int = 0
    embedded: bool = False
    started: str = ""

    @classmethod
    def for_this_process(
        cls,
        *,
        namespace: str,
        aeron_dir: str,
        control_stream_id: int,
        embedded: bool,
        clock: Clock = SYSTEM_CLOCK,
    ) -> Holder:
        """The holder of a driver in this process."""
        return cls(
            pid=os.getpid(),
            user=user_name(),
            host=socket.gethostname(),
            namespace=namespace,
            aeron_dir=aeron_dir,
            control_stream_id=control_stream_id,
            embedded=embedded,
            started=datetime.fromtimestamp(clock.wall_ns() / 1e9, UTC).isoformat(timespec="seconds"),
        )

    @classmethod
    def parse(cls, text: str) -> Holder | None:
        """The holder that wrote the text; None for any other text."""
        try:
            document = json.loads(text)
        except ValueError:
            return None
        if not isinstance(document, dict):
            return None
        if not all(name in document for name in cls.__slots__):
            return None
        fields = {name: document[name] for name in cls.__slots__}
        defaults = cls()
        if any(type(value) is not type(getattr(defaults, name)) for name, value in fields.items()):
            return None
        return cls(**fields)

    def to_text(self) -> str:
        """The text of the lock file, which `parse` reads."""
        return json.dumps(asdict(self))

    def __str__(self) -> str:
        if not self.pid:
            return "another process"
        if not self.user:
            # Another user's driver, known by its Aeron counter only.
            return (
                f"process {self.pid}, namespace {self.namespace!r}, media driver {self.aeron_dir}, control "
                f"stream {self.control_stream_id}"
            )
        kind = "embedded in" if self.embedded else "the service,"
        return (
            f"{kind} process {self.pid} of {self.user} on {self.host} since {self.started}, namespace "
            f"{self.namespace!r}, media driver {self.aeron_dir}, control stream {self.control_stream_id}"
        )


def qualified_namespace(namespace: str, instance_id: str = "") -> str:
    """The namespace with the driver's instance id, if it has one (driver §14). Part of paths and labels."""
    return f"{namespace}.{instance_id}" if instance_id else namespace


def driver_state(base: Path, namespace: str) -> Path:
    """The state directory of a driver, for its lock and provisions. The namespace is the qualified one."""
    return state_dir("driver", base_digest(base), namespace)


def read_holder(base_dir: Path, namespace: str, instance_id: str = "") -> Holder | None:
    """The driver of a namespace; None without one. Does not take the lock."""
    # Not driver_state(), which would create the directory.
    qualified = qualified_namespace(namespace, instance_id)
    path = state_path("driver", base_digest(base_dir), qualified, "lock")
    for _ in range(_POLLS):
        try:
            with path.open("rb") as file:
                if _is_free(file.fileno()):
                    return None
                holder = Holder.parse(file.read(_MAX_HOLDER_BYTES).decode(errors="replace"))
        except FileNotFoundError:
            return None
        if holder is not None:
            return holder
        time.sleep(_POLL_S)
    return Holder()


class HolderWatch:
    """Finds the driver of a namespace again and again, and reads its identity only when that has changed."""

    def __init__(self, base_dir: Path, namespace: str, instance_id: str = "") -> None:
        self._arguments = (base_dir, namespace, instance_id)
        qualified = qualified_namespace(namespace, instance_id)
        self._path = str(state_path("driver", base_digest(base_dir), qualified, "lock"))
        self._holder: Holder | None = None
        self._seen = (0, 0)

    def find(self) -> Holder | None:
        """As `read_holder`."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            status, is_free = os.fstat(descriptor), _is_free(descriptor)
        finally:
            os.close(descriptor)
        if is_free:
            return None
        now = (status.st_ino, status.st_mtime_ns)
        if self._holder is None or not self._holder.pid or now != self._seen:
            self._holder, self._seen = read_holder(*self._arguments), now
        return self._holder


def _is_free(descriptor: int) -> bool:
    query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    lock_type, *_ = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, query))
    return bool(lock_type == fcntl.F_UNLCK)


class DriverLock:
    """The locks of a running driver: its namespace, and the control stream of its media driver."""

    def __init__(self, base_dir: Path, namespace: str, holder: Holder) -> None:
        """Takes both locks; `namespace` is the qualified one. Raises DriverAlreadyRunning."""
        text = holder.to_text()
        self.state = driver_state(base_dir, namespace)
        self._namespace = _lock(
            self.state / "lock",
            text,
            f"namespace {namespace!r} below {base_dir} has a driver already",
            "attach to that driver, stop it, or choose another namespace or instance id",
        )
        digest = hashlib.sha256(str(Path(holder.aeron_dir).absolute()).encode()).hexdigest()[:16]
        try:
            self._control = _lock(
                state_dir("driver", "control", digest) / f"{holder.control_stream_id}.lock",
                text,
                f"control stream {holder.control_stream_id} of the media driver {holder.aeron_dir} has a "
                "driver already",
                "attach to that driver, stop it, or choose another control_stream_id",
            )
        except BaseException:
            self._namespace.release()
            raise

    def release(self) -> None:
        """Releases both locks."""
        self._control.release()
        self._namespace.release()


def _lock(path: Path, text: str, fault: str, remedy: str) -> _native.FileLock:
    try:
        return _native.FileLock(path, text)
    except LockHeld as error:
        holder = Holder.parse(error.holder) or Holder()
        raise DriverAlreadyRunning(
            f"{fault}: {holder}; {remedy}", holder=error.holder, pid=holder.pid, embedded=holder.embedded
        ) from None


def driver_counter_label(namespace: str, control_stream_id: int) -> str:
    """The label of a driver's Aeron counter, whose value is its process id. Part of the protocol."""
    return _LABEL.format(namespace=namespace, control=control_stream_id)


def _drivers_on(aeron_dir: str, control_stream_id: int) -> Iterator[tuple[int, str]]:
    """Process id and qualified namespace of each live driver on the control stream."""
    try:
        counters = read_aeron_counters(aeron_dir)
    except MediaDriverError:
        return
    for counter in counters:
        match = _LABEL_PATTERN.match(counter.label)
        # The counter of a killed driver remains for a while.
        if match is not None and int(match["control"]) == control_stream_id and is_alive(counter.value):
            yield counter.value, match["namespace"]


def other_driver(aeron_dir: str, control_stream_id: int) -> Holder | None:
    """A live driver of another process on the control stream."""
    for pid, namespace in _drivers_on(aeron_dir, control_stream_id):
        if pid != os.getpid():
            return Holder(
                pid=pid, namespace=namespace, aeron_dir=aeron_dir, control_stream_id=control_stream_id
            )
    return None


def namespace_on(aeron_dir: str, control_stream_id: int) -> str | None:
    """The qualified namespace of the driver on the control stream; None without a driver."""
    return next((namespace for _, namespace in _drivers_on(aeron_dir, control_stream_id)), None)


def check_no_other_driver(aeron_dir: str, control_stream_id: int) -> None:
    """Raises DriverAlreadyRunning if another process has a driver on the control stream."""
    holder = other_driver(aeron_dir, control_stream_id)
    for _ in range(_POLLS):
        if holder is None:
            return
        # A driver that has just ended in a live process: its counter disappears a moment after its lock.
        time.sleep(_POLL_S)
        holder = other_driver(aeron_dir, control_stream_id)
    if holder is None:
        return
    raise DriverAlreadyRunning(
        f"control stream {control_stream_id} of the media driver {aeron_dir} has a driver already: "
        f"process {holder.pid}, namespace {holder.namespace!r}; attach to that driver, stop it, or choose "
        "another control_stream_id",
        holder=holder.to_text(),
        pid=holder.pid,
        embedded=False,
    )
