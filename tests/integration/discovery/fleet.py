"""Drivers, registries and clients of a fleet, each in its own process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

import tensorpool as tp
from tensorpool.text import JsonMapping
from tests.remote_process import ROOT, TIMEOUT_S, Background

PERIOD_S = 0.2


@dataclass
class RoleProcess:
    """A command that runs until the test ends it; `prefix` runs it in another network namespace."""

    arguments: Sequence[str]
    config: Path
    prefix: Sequence[str] = ()
    log: Path = field(init=False)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        name = f"{self.config.stem}-{os.urandom(4).hex()}"
        self.log, self._ready = self.config.with_name(f"{name}.log"), self.config.with_name(f"{name}.ready")
        command = [*self.prefix, sys.executable, "-m", "tensorpool", *self.arguments]
        command += ["--config", str(self.config), "--ready-file", str(self._ready)]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    @property
    def ready(self) -> bool:
        assert self._process.poll() is None, self.log.read_text()
        return self._ready.exists()

    def kill(self) -> None:
        """Sends SIGKILL to the command and its children."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(TIMEOUT_S)

    def end(self) -> int:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
        return self._process.wait(TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        if exc_type is not None:
            sys.stderr.write(self.log.read_text())
        self.end()


class ClientProcess:
    """A process that produces, consumes and discovers streams."""

    context: tp.Context
    producer: tp.Producer
    consumer: tp.Consumer
    _offering: Background

    def open(self, **options: Any) -> None:
        self.context = tp.open("driver", **options)

    def produce(self, stream_id: int, **options: Any) -> int | None:
        self.producer = self.context.producer(stream_id, **options)
        return self.producer.epoch

    def describe(self, name: str, **attributes: Any) -> int:
        return self.producer.set_metadata(attributes, name=name)

    def offer(self, value: int) -> str:
        self.producer.wait_for_consumer(TIMEOUT_S)
        return self.producer.offer(np.array([value])).outcome

    def keep_offering(self, value: int) -> None:
        """Offers until `stop_offering`: frames before the bridge is connected are lost."""

        def loop(stop: threading.Event) -> None:
            while not stop.wait(0.02):
                self.producer.offer(np.array([value]))

        self._offering = Background(loop)

    def stop_offering(self) -> None:
        self._offering.stop()

    def discover(self, **conditions: Any) -> list[JsonMapping]:
        return [stream.to_json() for stream in self.context.discover(**conditions)]

    def consume(self, **options: Any) -> tuple[int, str]:
        self.consumer = self.context.consumer(**options)
        return self.consumer.stream_id, str(self.consumer.epoch)

    def receive(self) -> int:
        return int(self.consumer.receive(TIMEOUT_S).copy()[0])

    def close(self) -> None:
        self.context.close()
