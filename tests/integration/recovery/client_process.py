"""A client process of a driver: a worker with leases."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import tensorpool as tp
from tests.integration.faults.worker import Worker


def call_driver(context: tp.Context, command: str, arguments: dict[str, Any]) -> Any:
    """Calls a command of `service:driver`."""
    with context.service("driver", timeout=10) as driver:
        return driver.call(command, arguments)


class ClientProcess(Worker):
    """A worker that produces or consumes on a lease."""

    def launch_for_all(self, aeron_dir: str) -> None:
        """Runs a media driver that all users may use."""
        os.umask(0)
        self.driver = tp.MediaDriver(aeron_dir, dir_mode=0o777)

    def endpoints(self) -> list[tp.Producer | tp.Consumer]:
        """The producer and the consumer, if open."""
        endpoints = (getattr(self, name, None) for name in ("producer", "consumer"))
        return [endpoint for endpoint in endpoints if endpoint is not None]

    def leases(self) -> list[int]:
        """Ids of the leases that it holds now."""
        leases = (endpoint.lease() for endpoint in self.endpoints())
        return [lease.lease_id for lease in leases if lease is not None and lease.lease_id is not None]

    def lease(self, of: str = "producer") -> dict[str, Any] | None:
        """State of a lease, rejections included."""
        endpoint: tp.Producer | tp.Consumer = getattr(self, of)
        lease = endpoint.lease()
        return None if lease is None else lease.to_json()

    def close_producer(self) -> None:
        """Closes the producer."""
        self.producer.close()
        del self.producer

    def close_consumer(self) -> None:
        """Closes the consumer."""
        self.consumer.close()
        del self.consumer

    def restart_producer(self, stream_id: int, times: int) -> dict[str, list[int]]:
        """Attaches, offers a frame and closes, several times; returns the epochs and lease ids."""
        result: dict[str, list[int]] = {"epochs": [], "leases": []}
        for _ in range(times):
            result["epochs"].append(self.produce(stream_id) or 0)
            result["leases"] += self.leases()[:1]
            self.offer()
            self.close_producer()
        return result

    def producer_epoch(self) -> int | None:
        """Epoch of the producer."""
        return self.producer.epoch

    def event_history(self) -> list[tuple[str, int | None]]:
        """Kinds and epochs of all events so far."""
        return [(event["kind"], event["epoch"]) for event in self.events()]

    def call_driver(self, command: str, arguments: dict[str, Any]) -> Any:
        """Calls a command of `service:driver`."""
        return call_driver(self.context, command, arguments)

    def embeds_driver(self) -> bool:
        """Whether the driver runs in this process."""
        return self.context.embeds_driver

    def hold_the_interpreter(self, seconds: float) -> None:
        """Holds the GIL, as PyDLL does during a call, so that no other Python thread runs."""
        ctypes.PyDLL(None).usleep(int(seconds * 1e6))
