"""Processes of the service tests: services, clients, and those who flood the stream."""

from __future__ import annotations

import ctypes
import os
import time
from typing import Any

import tensorpool as tp
from tensorpool import _native
from tensorpool.service import Event


class Oven(tp.Service, name="oven"):
    """Does little, slowly if asked to."""

    temperature = tp.Property(20.0, minimum=0.0, maximum=250.0)
    baked = tp.Property(0, writable=False)
    begun = 0

    @tp.command
    def bake(self, seconds: float = 0.0) -> int:
        self.begun += 1
        time.sleep(seconds)
        self.baked += 1
        return self.baked


class Kitchen:
    """A process that runs one service."""

    def __init__(self, aeron_dir: str, instance: str | None = None) -> None:
        self.context = tp.open(aeron_dir=aeron_dir, media_driver="external")
        self.running = self.context.serve(Oven(instance=instance))
        while not self.running.is_ready:
            time.sleep(0.002)

    def pid(self) -> int:
        return os.getpid()

    def state(self) -> dict[str, Any]:
        service = self.running.service
        assert isinstance(service, Oven)
        return {
            "temperature": service.temperature,
            "baked": service.baked,
            "begun": service.begun,
            **{reading.name: reading.value for reading in self.running.agent.counters},
        }

    def allocations(self) -> int:
        """What all threads of this process have asked of the C library so far (tests preload a counter)."""
        counter = ctypes.CDLL(os.environ["COUNTING_MALLOC"]).allocations_of_all_threads
        counter.restype = ctypes.c_ulong
        return int(counter())

    def close(self) -> None:
        self.context.close()


class Guest:
    """A process that uses services."""

    def __init__(self, aeron_dir: str, target: str = "oven", instance: str | None = None) -> None:
        self.context = tp.open(aeron_dir=aeron_dir, media_driver="external")
        self.client = self.context.service(target, instance=instance, timeout=30.0)

    def get(self, name: str) -> Any:
        return self.client.get(name)

    def set(self, name: str, value: Any) -> Any:
        return self.client.set(name, value)

    def call(self, name: str, timeout: float = 30.0, **arguments: Any) -> Any:
        return self.client.call(name, timeout=timeout, **arguments)

    def many(self, count: int) -> list[int]:
        """Calls a command again and again; what each gave back."""
        return [self.client.call("bake") for _ in range(count)]

    def close(self) -> None:
        self.context.close()


class Crowd:
    """A process that fills the control stream with messages for others, and with garbage."""

    def __init__(self, aeron_dir: str) -> None:
        self.context = tp.open(aeron_dir=aeron_dir, media_driver="external")
        streams = self.context.service_streams
        self.publication = _native.Publication(
            self.context.connection.conductor, streams.channel, streams.control
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
        """Messages of many fragments, for others."""
        message = Event("service:elsewhere", "noise", bytes(size)).encode()
        for _ in range(count):
            self._offer(message)
        return count

    def garbage(self) -> int:
        """Everything that is no event for the oven, and some that nearly is."""
        good = Event("service:oven", "temperature", 99.0, correlation_id=5).encode()
        bad = [good[:length] for length in range(1, len(good))]
        bad += [os.urandom(64) for _ in range(100)]
        bad += [good[:4] + b"\x01\x00" + good[6:], b"\xff" * 300]
        for message in bad:
            self._offer(message)
        return len(bad)

    def close(self) -> None:
        self.context.close()
