"""Sealed messages of a bridge instance: its keys, publications that seal and subscriptions that open.

Native senders and receivers seal chunks themselves. The agent's thread owns everything here.
"""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from typing import Final

from .. import _native
from ..clock import Clock
from ..errors import ConfigError
from ..transport import StreamAddress
from .keys import KeyFile

_LOG = logging.getLogger(__name__)
_CHECK_PERIOD_NS: Final = 1_000_000_000


class BridgeKeyRing:
    """The keys of an instance, read again when the file changes."""

    def __init__(self, path: Path, clock: Clock) -> None:
        """Raises ConfigError if the file cannot be used."""
        self._file = KeyFile.read(path)
        self._clock = clock
        self._next_check_ns = 0
        self._fault = ""
        self.native = _native.BridgeKeys(list(self._file.keys))
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

    def close(self) -> None:
        """Close the subscription."""
        self._subscription.close()
