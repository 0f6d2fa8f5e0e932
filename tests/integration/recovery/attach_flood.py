"""Processes that flood the driver with attach requests, or the media driver with commands."""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import tensorpool as tp
from tensorpool import _native
from tensorpool.sbe import PublishMode, Role, ShmAttachRequest


class AttachFlood:
    """An untrusted client without a lease, on the same media driver."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.context = tp.open(**{**options, "mode": "standalone"})
        control = self.context.stream_ids.control
        self.publication = _native.Publication(self.context.connection.conductor, "aeron:ipc", control)
        self.outcomes: Counter[str] = Counter()

    def is_connected(self) -> bool:
        """Whether the control stream has a subscriber."""
        return self.publication.is_connected

    def flood(self, count: int, stream_ids: tuple[int, int], seconds: float) -> dict[str, int]:
        """Sends up to `count` requests for a consumer's lease, for at most this time. Each creates a stream
        of the given range, or attaches to one of them."""
        deadline = time.monotonic() + seconds
        for message in itertools.islice(requests(random.Random(count), *stream_ids), count):
            while (outcome := self.publication.offer(message)) != "sent":
                self.outcomes[outcome] += 1
                if time.monotonic() > deadline:
                    return dict(self.outcomes)
            self.outcomes["sent"] += 1
            if time.monotonic() > deadline:
                break
        return dict(self.outcomes)

    def close(self) -> None:
        """Closes the context."""
        self.publication.close()
        self.context.close()


class SubscriptionFlood:
    """A client of the media driver that adds subscriptions and closes them. All other clients get a notice of
    each."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.context = tp.open(**{**options, "mode": "standalone"})
        self.channel, self.stream_id = "aeron:ipc?tether=false", self.context.stream_ids.control

    def flood(self, count: int, seconds: float) -> int:
        """Adds and closes up to `count` subscriptions within this time. Returns how many."""
        conductor, added, deadline = self.context.connection.conductor, 0, time.monotonic() + seconds
        while added < count and time.monotonic() < deadline:
            subscriptions = [
                _native.Subscription(conductor, self.channel, self.stream_id) for _ in range(100)
            ]
            while not all(each.is_ready for each in subscriptions) and time.monotonic() < deadline:
                time.sleep(0.001)
            added += sum(each.is_ready for each in subscriptions)
            for each in subscriptions:
                each.close()
        return added

    def close(self) -> None:
        """Closes the context."""
        self.context.close()


def requests(numbers: random.Random, first: int, last: int) -> Iterator[bytes]:
    """Requests of ever new clients."""
    for stream_id in itertools.cycle(range(first, last + 1)):
        yield ShmAttachRequest(
            correlation_id=numbers.getrandbits(62),
            stream_id=stream_id,
            client_id=numbers.randrange(1, 1 << 31),
            role=Role.CONSUMER,
            publish_mode=PublishMode.EXISTING_OR_CREATE,
        ).encode()
