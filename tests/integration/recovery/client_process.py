"""A worker on a driver: what it knows of its leases, and a few things that no good program does."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import tensorpool as tp
from tests.integration.faults.worker import Worker


def call_driver(context: tp.Context, command: str, arguments: dict[str, Any]) -> Any:
    """A command of `service:driver`."""
    with context.service("driver", timeout=10) as driver:
        return driver.call(command, arguments)


class ClientProcess(Worker):
    """Produces or consumes on a lease."""

    def launch_for_all(self, aeron_dir: str) -> None:
        """A media driver that every user may use."""
        os.umask(0)
        self.driver = tp.MediaDriver(aeron_dir, dir_mode=0o777)

    def endpoints(self) -> list[tp.Producer | tp.Consumer]:
        return [one for name in ("producer", "consumer") if (one := getattr(self, name, None)) is not None]

    def leases(self) -> list[int]:
        """The ids of those that it holds at the moment, by its own account."""
        held = (one.lease() for one in self.endpoints())
        return [lease["lease_id"] for lease in held if lease is not None and lease["lease_id"] is not None]

    def lease(self, of: str = "producer") -> dict[str, Any] | None:
        """How it stands with a lease, refusals included."""
        endpoint: tp.Producer | tp.Consumer = getattr(self, of)
        return endpoint.lease()

    def close_producer(self) -> None:
        self.producer.close()
        del self.producer

    def close_consumer(self) -> None:
        self.consumer.close()
        del self.consumer

    def restart_producer(self, stream_id: int, times: int) -> dict[str, list[int]]:
        """Attaches, offers a frame and closes, again and again; the epochs and leases it had."""
        had: dict[str, list[int]] = {"epochs": [], "leases": []}
        for _ in range(times):
            had["epochs"].append(self.produce(stream_id) or 0)
            had["leases"] += self.leases()[:1]
            self.offer()
            self.close_producer()
        return had

    def producer_epoch(self) -> int | None:
        return self.producer.epoch

    def story(self) -> list[tuple[str, int | None]]:
        """What happened to its streams and its connection, each kind with the epoch."""
        return [(event["kind"], event["epoch"]) for event in self.events()]

    def ask(self, command: str, arguments: dict[str, Any]) -> Any:
        return call_driver(self.context, command, arguments)

    def embeds_driver(self) -> bool:
        return self.context.embeds_driver

    def hold_the_interpreter(self, seconds: float) -> None:
        """No other Python thread of this process runs meanwhile: PyDLL keeps the GIL during the call."""
        ctypes.PyDLL(None).usleep(int(seconds * 1e6))
