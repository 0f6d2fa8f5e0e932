"""Processes with consumers."""

from __future__ import annotations

import threading
from typing import Any

import tensorpool as tp
from tests.remote_process import Background


class ConsumerProcess:
    """Consumers of one stream with different requests."""

    def __init__(self, mode: str, options: dict[str, Any]) -> None:
        self.context = tp.open(mode, **options)  # type: ignore[arg-type]
        self.consumers: list[tp.Consumer] = []
        self._reading: Background | None = None

    def consume(self, stream_id: int, requests: list[dict[str, Any]]) -> None:
        """Opens a consumer for each request."""
        self.consumers = [self.context.consumer(stream_id, **request) for request in requests]

    def start_reading(self) -> None:
        """Polls all consumers on a thread until `stop_reading`."""

        def read(stop: threading.Event) -> None:
            while not stop.is_set():
                if not sum(len(consumer.poll()) for consumer in self.consumers):
                    stop.wait(0.001)

        self._reading = Background(read)

    def stop_reading(self) -> None:
        assert self._reading is not None
        self._reading.stop()

    def states(self) -> list[dict[str, Any]]:
        return [consumer.state().to_json() for consumer in self.consumers]

    def ledgers(self) -> list[dict[str, Any]]:
        """The ledger and the last sequence of each consumer."""
        return [
            {
                "balanced": ledger.balanced,
                "received": ledger.received,
                "dropped": {reason: n for reason, n in ledger.dropped.items() if n},
                "last_seq": consumer.last_seq,
                "connected": consumer.is_connected,
            }
            for consumer in self.consumers
            for ledger in [consumer.ledger()]
        ]
