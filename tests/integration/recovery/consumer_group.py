"""A process with many consumers, polled in turn by one thread."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import tensorpool as tp
from tests.integration.faults.worker import is_as_written
from tests.remote_process import Background


class ConsumerGroup:
    """Consumers of one stream on one context."""

    def __init__(self, options: dict[str, Any], stream_id: int, count: int) -> None:
        self.context = tp.open(**options)
        self.consumers = [self.context.consumer(stream_id) for _ in range(count)]
        self.received = [0] * count
        self.wrong = 0
        self.polling = Background(self._poll)

    def _poll(self, stop: threading.Event) -> None:
        while not stop.wait(0.01):
            for index, consumer in enumerate(self.consumers):
                for frame in consumer.poll():
                    with suppress(tp.FrameOverwritten):
                        self.wrong += not is_as_written(frame.copy(), frame.seq)
                        self.received[index] += 1

    def fewest(self) -> int:
        """Smallest number of received frames of a consumer."""
        return min(self.received)

    def epochs(self) -> list[int | None]:
        """Mapped epoch of each consumer."""
        return [consumer.epoch for consumer in self.consumers]

    def leases(self) -> list[int]:
        """Ids of the leases of all consumers."""
        leases = [consumer.lease() for consumer in self.consumers]
        return [lease.lease_id for lease in leases if lease is not None and lease.lease_id is not None]

    def stop(self) -> dict[str, Any]:
        """Stops polling; returns whether frames and ledgers are right."""
        self.polling.stop()
        ledgers = [consumer.ledger() for consumer in self.consumers]
        return {
            "wrong": self.wrong,
            "balanced": all(ledger.balanced for ledger in ledgers),
            "received": [ledger.received for ledger in ledgers] == self.received,
        }
