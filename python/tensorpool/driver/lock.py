"""One driver a namespace: a lock that dies with its holder and says who that is.

The same for the control stream of a media driver: requests name no namespace, so that two drivers on one
control stream would both answer each of them.

A driver among the media driver's counters, where everybody on that media driver can see it.

The lock of a driver is its user's own; another user's driver on the same control stream is seen here.
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
from typing import Any

from .. import _native
from ..clock import SYSTEM_CLOCK, Clock
from ..errors import DriverAlreadyRunning, LockHeld, MediaDriverError
from ..runtime.counters import read_aeron_counters
from ..shm.epoch_files import is_alive, user_name
from ..shm.ownership import base_digest
from ..state_dir import state_dir, state_path

# struct flock on 64-bit Linux: type, whence, start, length, pid.
_FLOCK = struct.Struct("@hhqqi4x")
# A holder writes its line right after it has locked: a reader in between looks again.
_LOOKS = 50
_LOOK_S = 0.002


@dataclass(frozen=True, slots=True)
class Holder:
    """Who runs a driver, as its lock file says."""

    pid: int = 0
    user: str = ""
    host: str = ""
    namespace: str = ""
    aeron_dir: str = ""
    control_stream_id: int = 0
    embedded: bool = False
    started: str = ""

    @classmethod
    def here(
        cls,
        *,
        namespace: str,
        aeron_dir: str,
        control_stream_id: int,
        embedded: bool,
        clock: Clock = SYSTEM_CLOCK,
    ) -> Holder:
        """This process."""
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
        """None for what no holder wrote."""
        try:
            found = json.loads(text)
        except ValueError:
            return None
        if not isinstance(found, dict):
            return None
        fields: dict[str, Any] = {name: found.get(name) for name in cls.__slots__}
        usual = cls()
        if any(type(value) is not type(getattr(usual, name)) for name, value in fields.items()):
            return None
        return cls(**fields)

    def line(self) -> str:
        return json.dumps(asdict(self))

    def __str__(self) -> str:
        if not self.pid:
            return "another process"
        if not self.user:
            # Another user's, seen among the media driver's counters: its lock is out of sight.
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
    """The directory's name for a namespace, with the driver's instance id where it has one (driver §14)."""
    return f"{namespace}.{instance_id}" if instance_id else namespace


def driver_state(base: Path, place: str) -> Path:
    """Where a driver keeps its lock and what it has to remember."""
    return state_dir("driver", base_digest(base), place)


def read_holder(base_dir: Path, namespace: str, instance_id: str = "") -> Holder | None:
    """Who holds the namespace; None if nobody does. Takes nothing, and so disturbs nobody."""
    place = qualified_namespace(namespace, instance_id)
    # Not through driver_state(): a look must not make it.
    path = state_path("driver", base_digest(base_dir), place, "lock")
    for _ in range(_LOOKS):
        try:
            with path.open("rb") as file:
                if _is_free(file.fileno()):
                    return None
                found = Holder.parse(file.read(4096).decode(errors="replace"))
        except FileNotFoundError:
            return None
        if found is not None:
            return found
        time.sleep(_LOOK_S)
    return Holder()


def _is_free(descriptor: int) -> bool:
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, asked)
    return bool(_FLOCK.unpack(answer)[0] == fcntl.F_UNLCK)


class DriverLock:
    """Held as long as the driver runs: the namespace, and the media driver's control stream."""

    def __init__(self, base_dir: Path, place: str, holder: Holder) -> None:
        """Raises DriverHeld, which says who has it and what to do."""
        line = holder.line()
        self.state = driver_state(base_dir, place)
        self._namespace = _take(
            self.state / "lock",
            line,
            f"namespace {place!r} below {base_dir} has a driver already",
            "attach to that one, stop it, or choose another namespace or instance id",
        )
        digest = hashlib.sha256(str(Path(holder.aeron_dir).absolute()).encode()).hexdigest()[:16]
        try:
            self._control = _take(
                state_dir("driver", "control", digest) / f"{holder.control_stream_id}.lock",
                line,
                f"control stream {holder.control_stream_id} of the media driver {holder.aeron_dir} has a "
                "driver already",
                "attach to that one, stop it, or choose another control_stream_id",
            )
        except BaseException:
            self._namespace.release()
            raise

    def release(self) -> None:
        self._control.release()
        self._namespace.release()


def _take(path: Path, line: str, what: str, remedy: str) -> _native.FileLock:
    try:
        return _native.FileLock(path, line)
    except LockHeld as error:
        holder = Holder.parse(error.holder) or Holder()
        raise DriverAlreadyRunning(
            f"{what}: {holder}; {remedy}", holder=error.holder, pid=holder.pid, embedded=holder.embedded
        ) from None


LABEL = "tensorpool-driver: namespace {place}, control stream {control}"
_LABEL = re.compile(r"tensorpool-driver: namespace (?P<place>\S+), control stream (?P<control>\d+)")


def driver_counter_label(place: str, control_stream_id: int) -> str:
    """The label of the counter whose value is the driver's process id."""
    return LABEL.format(place=place, control=control_stream_id)


def _drivers_on(aeron_dir: str, control_stream_id: int) -> Iterator[tuple[int, str]]:
    """Process and place of each live driver on that control stream."""
    try:
        counters = read_aeron_counters(aeron_dir)
    except MediaDriverError:
        return
    for counter in counters:
        found = _LABEL.match(counter.label)
        # The counter of a killed driver stays for a while.
        if found is not None and int(found["control"]) == control_stream_id and is_alive(counter.value):
            yield counter.value, found["place"]


def other_driver(aeron_dir: str, control_stream_id: int) -> Holder | None:
    """A live driver of another process on that control stream."""
    for pid, place in _drivers_on(aeron_dir, control_stream_id):
        if pid != os.getpid():
            return Holder(pid=pid, namespace=place, aeron_dir=aeron_dir, control_stream_id=control_stream_id)
    return None


def namespace_on(aeron_dir: str, control_stream_id: int) -> str | None:
    """The namespace, with the instance id where there is one, of the driver on that control stream."""
    return next((place for _, place in _drivers_on(aeron_dir, control_stream_id)), None)


def check_no_other_driver(aeron_dir: str, control_stream_id: int) -> None:
    """Raises DriverHeld if somebody else's driver serves the control stream."""
    holder = other_driver(aeron_dir, control_stream_id)
    for _ in range(_LOOKS):
        if holder is None:
            return
        # One that has just ended in a process that lives on: its counter goes a moment after its lock.
        time.sleep(_LOOK_S)
        holder = other_driver(aeron_dir, control_stream_id)
    if holder is None:
        return
    raise DriverAlreadyRunning(
        f"control stream {control_stream_id} of the media driver {aeron_dir} has a driver already: "
        f"process {holder.pid}, namespace {holder.namespace!r}; attach to that one, stop it, or choose "
        "another control_stream_id",
        holder=holder.line(),
        pid=holder.pid,
        embedded=False,
    )
