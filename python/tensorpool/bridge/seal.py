"""Sealed messages of a bridge instance: its key file, publications that seal and subscriptions that open.

Native senders and receivers seal chunks themselves. The agent's thread owns everything here.

The key file has the keys that both ends share, one per line, the first one in use. A key is 64 hexadecimal
digits. Text behind `#` and empty lines are ignored. Only the owner may read the file. All keys are accepted,
so that two ends can change to another key one after the other.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import secrets
import socket
import stat
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Self

from .. import _native
from ..clock import Clock
from ..durable import replace_file
from ..errors import ConfigError
from ..transport import StreamAddress

KEY_BYTES: Final = 32
MAX_KEYS: Final = 4
"""Keys that may be accepted at the same time."""
_KEY: Final = re.compile(r"[0-9a-fA-F]{64}")
_MAX_FILE_BYTES: Final = 64 << 10
_PRIVATE_MODE: Final = 0o600


class _FileState(NamedTuple):
    """What changes when a file is replaced or written."""

    device: int
    inode: int
    size: int
    mtime_ns: int

    @classmethod
    def from_stat(cls, status: os.stat_result) -> Self:
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


@dataclass(frozen=True, slots=True)
class KeyFile:
    """The keys of a file. Their text is never printed."""

    path: Path
    keys: tuple[bytes, ...]
    _state: _FileState

    @classmethod
    def read(cls, path: Path) -> KeyFile:
        """Raises ConfigError for a file that is missing, not private, or has no valid keys."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            raise ConfigError(
                f"key_file {path}: no such file; make one with tensorpool bridge keygen {path}"
            ) from None
        except OSError as error:
            raise ConfigError(f"key_file {path}: {error.strerror}") from None
        try:
            status = os.fstat(descriptor)
            if (fault := _privacy_fault(status)) is not None:
                raise ConfigError(f"key_file {path}: {fault}")
            text = os.read(descriptor, _MAX_FILE_BYTES)
        finally:
            os.close(descriptor)
        return cls(path, _parse(path, text), _FileState.from_stat(status))

    def is_changed(self) -> bool:
        """Whether the file is another one by now, or was written."""
        try:
            return _FileState.from_stat(os.stat(self.path)) != self._state
        except OSError:
            return True

    @property
    def ids(self) -> list[str]:
        """Names of the keys, for people who compare two hosts. They reveal nothing."""
        return [key_id(key) for key in self.keys]

    def __repr__(self) -> str:
        return f"KeyFile({str(self.path)!r}, {len(self.keys)} keys)"


def key_id(key: bytes) -> str:
    """The name of a key: eight hexadecimal digits."""
    return f"{_native.BridgeKeys.id_of(key):08x}"


def _privacy_fault(status: os.stat_result) -> str | None:
    if not stat.S_ISREG(status.st_mode):
        return "is not a file"
    if status.st_mode & 0o077:
        mode = stat.S_IMODE(status.st_mode)
        return f"has mode {mode:04o}, so others can use it; make it private with chmod 600"
    if status.st_uid not in (0, os.geteuid()):
        return f"belongs to user id {status.st_uid}; it has to belong to the user of the bridge, or to root"
    return None


def _parse(path: Path, text: bytes) -> tuple[bytes, ...]:
    keys = []
    for number, line in enumerate(text.decode("utf-8", "replace").splitlines(), start=1):
        content = line.partition("#")[0].strip()
        if not content:
            continue
        if not _KEY.fullmatch(content):
            raise ConfigError(f"key_file {path}, line {number}: a key has 64 hexadecimal digits")
        keys.append(bytes.fromhex(content))
    if not keys or len(keys) > MAX_KEYS:
        raise ConfigError(f"key_file {path}: has {len(keys)} keys; use 1 to {MAX_KEYS}")
    if len(set(keys)) < len(keys):
        raise ConfigError(f"key_file {path}: has the same key twice; remove one of the lines")
    return tuple(keys)


def create_key_file(path: Path) -> KeyFile:
    """A new file with one random key. Raises ConfigError if there is a file already."""
    if path.exists():
        raise ConfigError(f"{path} exists; add a key to it with --add, or choose another name")
    return _write(path, (secrets.token_bytes(KEY_BYTES),))


def add_key(path: Path) -> KeyFile:
    """The file with a new random key at the end: accepted, and not yet in use."""
    keys = KeyFile.read(path).keys
    if len(keys) == MAX_KEYS:
        raise ConfigError(f"{path} has {MAX_KEYS} keys already; remove old ones with --retire")
    return _write(path, (*keys, secrets.token_bytes(KEY_BYTES)))


def promote_key(path: Path) -> KeyFile:
    """The file with its last key first: in use, the others still accepted."""
    *others, last = KeyFile.read(path).keys
    if not others:
        raise ConfigError(f"{path} has one key, which is in use; add another one with --add first")
    return _write(path, (last, *others))


def retire_keys(path: Path) -> KeyFile:
    """The file with its first key only."""
    return _write(path, KeyFile.read(path).keys[:1])


def _write(path: Path, keys: tuple[bytes, ...]) -> KeyFile:
    lines = ["# Keys of a tensorpool bridge. The first one is in use, all are accepted. Keep it private."]
    lines += [f"{key.hex()}  # {key_id(key)}" for key in keys]
    try:
        replace_file(path, ("\n".join(lines) + "\n").encode(), mode=_PRIVATE_MODE)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    return KeyFile.read(path)


_LOG = logging.getLogger(__name__)
_CHECK_PERIOD_NS: Final = 1_000_000_000
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_ORIGIN_BYTES: Final = 8
"""The number of a host has 64 bits in a sealed message."""


def host_number(aeron_dir: str) -> int:
    """A number of the system that a bridge belongs to: the same for all its bridges, also after a restart.

    A system is a media driver's directory on a running machine. Containers of one machine have host names,
    memory filesystems, or at least directories of their own.
    """
    directory = Path(os.path.abspath(aeron_dir))
    try:
        boot_id = _BOOT_ID.read_bytes()
    except OSError:
        boot_id = b""
    try:
        above = os.stat(directory.parent)
        device, inode = above.st_dev, above.st_ino
    except OSError:
        device = inode = 0
    parent = f"{device} {inode}".encode()
    parts = (boot_id, socket.gethostname().encode(), parent, os.fsencode(directory))
    return int.from_bytes(hashlib.sha256(b"\0".join(parts)).digest()[:_ORIGIN_BYTES], "little")


class BridgeKeyRing:
    """The keys of an instance, read again when the file changes."""

    def __init__(self, path: Path, clock: Clock, aeron_dir: str) -> None:
        """Raises ConfigError if the file cannot be used. `aeron_dir`: that of the bridge's media driver."""
        self._file = KeyFile.read(path)
        self._clock = clock
        self._next_check_ns = 0
        self._fault = ""
        self.native = _native.BridgeKeys(list(self._file.keys), host_number(aeron_dir))
        _LOG.info("keys of %s: %s", path, ", ".join(self._file.ids))

    @property
    def ids(self) -> list[str]:
        """Names of the accepted keys, the one in use first."""
        return self._file.ids

    def do_work(self) -> int:
        """Read the file again if it has changed. A file that cannot be used changes nothing."""
        now_ns = self._clock.monotonic_ns()
        if now_ns < self._next_check_ns:
            return 0
        self._next_check_ns = now_ns + _CHECK_PERIOD_NS
        if not self._file.is_changed():
            return 0
        try:
            self._file = KeyFile.read(self._file.path)
        except ConfigError as error:
            if str(error) != self._fault:
                _LOG.error("the keys in use stay in use: %s", error)
            self._fault = str(error)
            return 0
        self._fault = ""
        self.native.replace(list(self._file.keys))
        _LOG.info("new keys of %s: %s", self._file.path, ", ".join(self._file.ids))
        return 1


class BridgePublication:
    """A publication on a stream between bridges; sealed if there are keys."""

    def __init__(
        self,
        conductor: _native.Conductor,
        address: StreamAddress,
        purpose: str,
        keys: BridgeKeyRing | None,
    ) -> None:
        self._publication = _native.Publication(conductor, address.channel, address.stream_id)
        self._sealer = None if keys is None else _native.BridgeSealer(keys.native, purpose)

    @property
    def is_ready(self) -> bool:
        """Whether the media driver has opened the channel."""
        return self._publication.is_ready

    @property
    def failure(self) -> str | None:
        """Why the media driver refused the channel; None if it did not."""
        return self._publication.failure

    def offer(self, message: bytes) -> bool:
        """Whether the message was sent."""
        sealed = message if self._sealer is None else self._sealer.seal(message)
        return self._publication.offer(sealed) == "sent"

    def close(self) -> None:
        """Close the publication."""
        self._publication.close()


class BridgeSubscription:
    """A subscription to a stream between bridges; with keys, only sealed messages are read."""

    def __init__(
        self,
        conductor: _native.Conductor,
        address: StreamAddress,
        purpose: str,
        keys: BridgeKeyRing | None,
        max_age_ns: int,
    ) -> None:
        self._conductor = conductor
        self._address = address
        self._subscription = _native.Subscription(conductor, address.channel, address.stream_id)
        self._opener = None if keys is None else _native.BridgeOpener(keys.native, purpose, max_age_ns)

    def poll(self, limit: int) -> list[bytes]:
        """Messages of up to `limit` fragments. Rejected ones are counted."""
        messages = self._subscription.poll(limit)
        if self._opener is None:
            return messages
        opened = map(self._opener.open, messages)
        return [message for message in opened if message is not None]

    def rejected(self) -> Counter[str]:
        """Rejected messages, by reason."""
        return Counter() if self._opener is None else Counter(self._opener.rejected())

    @property
    def is_connected(self) -> bool:
        """Whether a sender publishes on the stream."""
        return self._subscription.is_connected

    def reopen(self) -> None:
        """Subscribe again, for a stream of Aeron that has stopped."""
        self._subscription.close()
        self._subscription = _native.Subscription(
            self._conductor, self._address.channel, self._address.stream_id
        )

    def close(self) -> None:
        """Close the subscription."""
        self._subscription.close()
