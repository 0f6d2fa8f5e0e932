"""A process that floods the driver's control stream with attach requests."""

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
