"""The control stream as a driver uses it: requests in, responses and notices out, and what is wrong with it.

All clients of a media driver write to one log. Two faults of others stop it:

- *Blocked*: a client was killed inside an offer. Its claim stays uncommitted, and no subscriber can read past
  it until the media driver's unblock timeout. Keepalives are behind the claim, so no lease expires for that
  long.
- *Full*: a tethered subscription does not poll. No client can write until it polls or ends.

In a flood of requests the log has little room for the driver. What it sends is then mostly for senders that
do not listen: grants, and notices of their ends. So there are two queues: what a client is known to wait for
goes first.

Owned by the agent's thread.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Final

from .. import _native
from ..clock import Clock
from ..transport.channels import tethered
from .counters import DriverCounters

_LOG = logging.getLogger(__name__)
_MAX_UNSENT: Final = 4096
# Shorter faults are the work of others in progress.
_FAULT_NS: Final = 500_000_000
# No media driver leaves a log blocked for this long: then leases expire again.
_MAX_BLOCKED_NS: Final = 60_000_000_000


class ControlStream:
    """The driver's publication and subscription of the control stream."""

    def __init__(
        self,
        conductor: _native.Conductor,
        channel: str,
        stream_id: int,
        *,
        counters: DriverCounters,
        clock: Clock,
    ) -> None:
        self.stream_id = stream_id
        self._counters = counters
        self._clock = clock
        self._publication = _native.Publication(conductor, channel, stream_id)
        try:
            # Tethered: a slow driver must slow its clients down rather than lose a keepalive.
            self._requests = _native.Subscription(conductor, tethered(channel), stream_id)
        except BaseException:
            self._publication.close()
            raise
        self._awaited: deque[bytes] = deque()
        self._others: deque[bytes] = deque()
        self._blocked = _Fault(clock.monotonic_ns())
        self._full = _Fault(clock.monotonic_ns())

    @property
    def is_ready(self) -> bool:
        """Whether both handles are registered, and connected with each other."""
        return self._publication.is_ready and self._requests.is_ready and self._requests.is_connected

    @property
    def failure(self) -> str | None:
        """Why the media driver refuses the stream; None if it does not."""
        return self._requests.failure or self._publication.failure

    # --- requests

    @property
    def requests(self) -> _native.Subscription:
        """The subscription that `poll` reads."""
        return self._requests

    def poll(self, limit: int) -> list[_native.ImageMessage]:
        """The messages that are ready, of at most `limit` fragments, each with its image."""
        messages = self._requests.poll_images(limit)
        if messages:
            # The log moves: what is behind these is not read yet, and not blocked.
            self._blocked.restart(self._clock.monotonic_ns())
        return messages

    def read_until_ns(self, now_ns: int) -> int | None:
        """The time up to which all messages were read, after a poll that returned none.

        The present, or while the log is blocked the time before the block. None if that is not known, without
        a media driver.
        """
        # Not the beginning of the duty cycle: in a flood it was long ago, and the log would seem to be
        # blocked since then.
        checked_ns = self._clock.monotonic_ns()
        lag_bytes = self._requests.lag_bytes(self._publication)
        if lag_bytes is None:
            return None
        if self._blocked.update(lag_bytes > 0, checked_ns):
            self._counters.blocked.add()
            _LOG.warning(
                "control stream %d is blocked: a client has ended inside an offer, or is paused there. The "
                "media driver unblocks it after its publication unblock timeout; no lease expires until then",
                self.stream_id,
            )
        return max(min(self._blocked.since_ns, now_ns), now_ns - _MAX_BLOCKED_NS)

    # --- responses and notices

    def send(self, message: bytes, *, is_awaited: bool = False) -> None:
        """Queues a message; one that a client is known to wait for (`is_awaited`) goes before the others.
        Beyond the limit of a queue its oldest is dropped."""
        queue = self._awaited if is_awaited else self._others
        queue.append(message)
        if len(queue) > _MAX_UNSENT:
            queue.popleft()
            self._counters.unsent.add()

    def publish(self) -> int:
        """Sends queued messages. Returns their number."""
        sent = 0
        while (queue := self._awaited or self._others) and self._publication.offer(queue[0]) == "sent":
            queue.popleft()
            sent += 1
        # While this driver has messages to read, it may be the slow one itself.
        is_full = self._publication.has_room is False and self._requests.lag_bytes(self._publication) == 0
        if self._full.update(is_full, self._clock.monotonic_ns()):
            self._counters.full.add()
            _LOG.warning(
                "control stream %d accepts no messages: a tethered subscription does not poll. Clients of "
                "this package get by for a while, others cannot attach or keep a lease; `tensorpool doctor` "
                "names the subscription",
                self.stream_id,
            )
        return sent

    def flush(self, timeout_ns: int, pause_s: float) -> None:
        """Sends the last messages; gives up after a while, because the media driver may have ended."""
        deadline_ns = self._clock.monotonic_ns() + timeout_ns
        while (self._awaited or self._others) and self._clock.monotonic_ns() < deadline_ns:
            if not self.publish():
                # The tethered subscription may fill the stream with messages that the driver has not read.
                self._requests.poll(1024)
                self._clock.sleep(pause_s)
        for queue in (self._awaited, self._others):
            self._counters.unsent.add(len(queue))
            queue.clear()

    # --- faults

    def blocked_s(self, now_ns: int) -> float:
        """For how long the log has been blocked; 0.0 if it is not."""
        return self._blocked.lasting_s(now_ns)

    def full_s(self, now_ns: int) -> float:
        """For how long no client could write; 0.0 if clients can write."""
        return self._full.lasting_s(now_ns)

    def close(self) -> None:
        """Closes both handles."""
        self._requests.close()
        self._publication.close()


class _Fault:
    """A state that is a fault once it has lasted."""

    def __init__(self, now_ns: int) -> None:
        self.since_ns = now_ns
        """When the state was last seen to be good."""
        self._bad_since_ns = now_ns
        self._is_reported = False

    def update(self, is_bad: bool, now_ns: int) -> bool:
        """Takes the present state. True once, when it has lasted so long that it is a fault."""
        if not is_bad:
            self.since_ns = now_ns
            self.restart(now_ns)
            return False
        is_new = not self._is_reported and now_ns - self._bad_since_ns >= _FAULT_NS
        self._is_reported = self._is_reported or is_new
        return is_new

    def restart(self, now_ns: int) -> None:
        """The state begins now, if it is bad: before, it was not, or was not checked."""
        self._bad_since_ns, self._is_reported = now_ns, False

    def lasting_s(self, now_ns: int) -> float:
        return (now_ns - self._bad_since_ns) / 1e9 if self._is_reported else 0.0
