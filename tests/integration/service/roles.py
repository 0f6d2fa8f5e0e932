"""Processes of the service tests: services, clients, and senders that flood the stream."""

from __future__ import annotations

import ctypes
import os
import time
from typing import Any

import tensorpool as tp
from tensorpool import _native
from tensorpool.service import Event


class Heater(tp.Service, name="heater"):
    """A service with a property and a command that may take long."""

    temperature = tp.Property(20.0, minimum=0.0, maximum=250.0)
    runs = tp.Property(0, writable=False)
    started = 0

    @tp.command
    def run(self, seconds: float = 0.0) -> int:
        self.started += 1
        time.sleep(seconds)
        self.runs += 1
        return self.runs


class ServiceProcess:
    """A process that runs one service."""

    def __init__(self, aeron_dir: str, instance: str | None = None) -> None:
        self.context = tp.open(aeron_dir=aeron_dir, media_driver="external")
        self.running = self.context.serve(Heater(instance=instance))
        while not self.running.is_ready:
            time.sleep(0.002)

    def pid(self) -> int:
        return os.getpid()

    def state(self) -> dict[str, Any]:
        service = self.running.service
        assert isinstance(service, Heater)
        return {
            "temperature": service.temperature,
            "runs": service.runs,
            "started": service.started,
            **{counter.name: counter.value for counter in self.running.agent.counters},
        }

    def allocations(self) -> int:
        """Allocations of all threads of this process so far (tests preload a counting malloc)."""
        counter = ctypes.CDLL(os.environ["COUNTING_MALLOC"]).allocations_of_all_threads
        counter.restype = ctypes.c_ulong
        return int(counter())

    def close(self) -> None:
        self.context.close()


class ServiceClientProcess:
    """A process that uses services."""

    def __init__(self, aeron_dir: str, target: str = "heater", instance: str | None = None) -> None:
        self.context = tp.open(aeron_dir=aeron_dir, media_driver="external")
        self.client = self.context.service(target, instance=instance, timeout=30.0)

    def get(self, name: str) -> Any:
        return self.client.get(name)

    def set(self, name: str, value: Any) -> Any:
        return self.client.set(name, value)

    def call(self, name: str, timeout: float = 30.0, **arguments: Any) -> Any:
        return self.client.call(name, timeout=timeout, **arguments)

    def many(self, count: int) -> list[int]:
        """Calls a command repeatedly. Returns all results."""
        return [self.client.call("run") for _ in range(count)]

    def close(self) -> None:
        self.context.close()


class ManyClients:
    """A process that floods the control stream with messages for other services and malformed messages."""

    def __init__(self, aeron_dir: str) -> None:
        self.context = tp.open(aeron_dir=aeron_dir, media_driver="external")
        streams = self.context.service_streams
        self.publication = _native.Publication(
            self.context.connection.conductor, streams.control_channel, streams.control
        )
        while not self.publication.is_connected:
            time.sleep(0.002)

    def _offer(self, message: bytes) -> None:
        while self.publication.offer(message) != "sent":
            time.sleep(0)

    def flood(self, count: int) -> int:
        message = Event("service:elsewhere", "noise", 1, correlation_id=5).encode()
        for _ in range(count):
            self._offer(message)
        return count

    def flood_large(self, count: int, size: int) -> int:
        """Sends messages of many fragments for other services."""
        message = Event("service:elsewhere", "noise", bytes(size)).encode()
        for _ in range(count):
            self._offer(message)
        return count

    def garbage(self) -> int:
        """Sends truncated, random and foreign messages. Returns their number."""
        good = Event("service:heater", "temperature", 99.0, correlation_id=5).encode()
        bad = [good[:length] for length in range(1, len(good))]
        bad += [os.urandom(64) for _ in range(100)]
        bad += [good[:4] + b"\x01\x00" + good[6:], b"\xff" * 300]
        for message in bad:
            self._offer(message)
        return len(bad)

    def close(self) -> None:
        self.context.close()
