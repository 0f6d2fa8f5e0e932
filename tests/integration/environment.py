"""The private environment of one test's processes: media driver directory, base directory, stream."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.integration.faults.worker import Worker
from tests.remote_process import RemoteProcess


@dataclass
class Environment:
    """Starts worker processes in a private environment."""

    aeron_dir: Path
    base: Path
    stream_id: int
    announce_period: float
    stack: ExitStack = field(repr=False)
    namespace: str = "default"

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of `tp.open`."""
        return {
            "aeron_dir": str(self.aeron_dir),
            "shm_base_dir": str(self.base),
            "announce_period": self.announce_period,
        }

    def worker(self, process: RemoteProcess | None = None, **options: Any) -> RemoteProcess:
        """A process with an open context; a new process unless one is given."""
        remote = process or self.process()
        remote.call("open", **{**self.options, **options})
        return remote

    def process(self) -> RemoteProcess:
        """A process without a context."""
        return self.stack.enter_context(RemoteProcess(Worker))

    def driver(self) -> RemoteProcess:
        """A process that runs only the media driver."""
        remote = self.process()
        remote.call("launch", aeron_dir=str(self.aeron_dir))
        return remote

    def producer(
        self, process: RemoteProcess | None = None, *, at_full_speed: bool = False, **options: Any
    ) -> RemoteProcess:
        """A process with a producer, which offers all the time if `at_full_speed`."""
        remote = self.worker(process, **options)
        remote.call("produce", stream_id=self.stream_id)
        if at_full_speed:
            remote.call("offer_always")
        return remote

    def consumer(self, process: RemoteProcess | None = None, **options: Any) -> RemoteProcess:
        """A process with a consumer that receives all the time."""
        remote = self.worker(process, **options)
        remote.call("consume", stream_id=self.stream_id)
        remote.call("receive_always")
        return remote

    def epochs(self) -> set[int]:
        """Epochs of the stream that have a directory now."""
        return {
            int(path.name) for path in self.base.glob(f"tensorpool-*/{self.namespace}/{self.stream_id}/*")
        }


def newest_epoch(consumer: RemoteProcess) -> int:
    """The last epoch of which the consumer has received a few frames; 0 if there is none."""
    received = consumer.call("receiving")["received"]
    return max((int(epoch) for epoch, (_, _, count) in received.items() if count > 2), default=0)
