"""Recovery of the model: it is complete within three announce periods after the system is, measured."""

from __future__ import annotations

import time
from typing import Any

import pytest

import tensorpool as tp
from tensorpool.runtime.runner import Runner
from tensorpool.supervisor.agent import SupervisorAgent
from tensorpool.supervisor.config import SupervisorSettings
from tests.integration.supervisor.endpoint_process import EndpointProcess
from tests.remote_process import TIMEOUT_S, RemoteProcess

# Longer than the pauses of a busy machine, so that the announces determine the result.
ANNOUNCE_S = 2.0
MAX_PERIODS = 3.0
MS = 1_000_000


class AttachedProcess(EndpointProcess):
    """Measures when its consumers are mapped again."""

    def __init__(self) -> None:
        pass

    def open(self, **options: Any) -> None:
        super().__init__(mode="driver", media_driver="external", **options)

    def remapped(self, name: str, after: int) -> tuple[float, int]:
        """The time, on the clock of all processes, at which a later epoch was mapped; and the epoch."""
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            state = self.state(name)
            epoch = self.consumers[name].epoch
            if state["phase"] == "mapped" and epoch is not None and epoch > after:
                return time.monotonic(), epoch
            time.sleep(0.002)
        raise TimeoutError(f"{name} has state {self.state(name)}")


class MediaDriverProcess:
    """A media driver that the test kills."""

    def open(self, aeron_dir: str) -> None:
        self.driver = tp.MediaDriver(aeron_dir)

    def close(self) -> None:
        self.driver.close()


class DriverProcess:
    """An SHM driver that the test kills."""

    def open(self, **options: Any) -> None:
        self.context = tp.open("embedded", media_driver="external", **options)

    def close(self) -> None:
        self.context.close()


class SupervisorProcess:
    """A supervisor that the test kills; it measures when its model is complete."""

    def open(self, **options: Any) -> float:
        """Returns the time at which it was ready."""
        self.context = tp.open("standalone", media_driver="external", **options)
        self.agent = SupervisorAgent(self.context, settings=SupervisorSettings(evaluation_period_ns=50 * MS))
        self.runner = Runner(self.agent)
        self.runner.start()
        deadline = time.monotonic() + TIMEOUT_S
        while not self.agent.is_ready():
            assert time.monotonic() < deadline, "the supervisor is not ready"
            time.sleep(0.001)
        return time.monotonic()

    def complete(self, stream_id: int, epoch: int) -> tuple[float, float]:
        """When it was connected, and when all endpoints were in the model, in that epoch or a later one.

        A consumer may reattach before its producer, which then gets another epoch.
        """
        deadline, connected = time.monotonic() + TIMEOUT_S, 0.0
        while not self._is_complete(stream_id, epoch):
            assert time.monotonic() < deadline, self.agent.latest.stream(stream_id)
            connected = connected if self.agent.is_ready() else time.monotonic()
            time.sleep(0.002)
        return connected, time.monotonic()

    def _is_complete(self, stream_id: int, epoch: int) -> bool:
        stream = self.agent.latest.stream(stream_id)
        return (
            stream is not None
            and stream.state in ("live", "quiet")
            and stream.epoch >= epoch
            and stream.name == "camera"
            and stream.producer is not None
            and stream.producer.epoch == stream.epoch
            and [consumer.epoch for consumer in stream.consumers] == [stream.epoch]
        )

    def close(self) -> None:
        self.runner.close()
        self.context.close()


@pytest.mark.long
@pytest.mark.leaves_files
def test_model_is_complete_within_three_announce_periods(
    aeron_dir: Any, shm_base: Any, free_stream_id: int
) -> None:
    options: dict[str, Any] = {
        "aeron_dir": str(aeron_dir),
        "shm_base_dir": str(shm_base),
        "announce_period": ANNOUNCE_S,
    }
    measured: dict[str, float] = {}
    with (
        RemoteProcess(MediaDriverProcess) as media, RemoteProcess(MediaDriverProcess) as other_media,
        RemoteProcess(DriverProcess) as shm, RemoteProcess(DriverProcess) as second_shm,
        RemoteProcess(DriverProcess) as third_shm,
        RemoteProcess(AttachedProcess) as source, RemoteProcess(AttachedProcess) as reader,
        RemoteProcess(SupervisorProcess) as first, RemoteProcess(SupervisorProcess) as second,
    ):  # fmt: skip
        media.call("open", aeron_dir=str(aeron_dir))
        shm.call("open", **options)
        for process in (source, reader):
            process.call("open", **options)
        source.call("produce", stream_id=free_stream_id, name="camera")
        reader.call("consume", name="one", stream_id=free_stream_id)
        _, epoch = reader.call("remapped", name="one", after=0)

        def delay(supervisor: RemoteProcess, since: float, epoch: int) -> float:
            connected, complete = supervisor.call("complete", stream_id=free_stream_id, epoch=epoch)
            return max(complete - max(since, connected), 0.0)

        measured["start"] = delay(first, first.call("open", **options), epoch)
        first.kill()
        measured["restart"] = delay(second, second.call("open", **options), epoch)

        def measure(event: str, before: int) -> int:
            since, epoch = reader.call("remapped", name="one", after=before)
            measured[event] = delay(second, since, epoch)
            return int(epoch)

        shm.kill()
        second_shm.call("open", **options)
        epoch = measure("driver killed", epoch)

        media.kill()
        second_shm.kill()
        other_media.call("open", aeron_dir=str(aeron_dir))
        third_shm.call("open", **options)
        measure("media driver killed", epoch)

        periods = {event: seconds / ANNOUNCE_S for event, seconds in measured.items()}
        print({event: f"{n:.2f} announce periods" for event, n in periods.items()})
        assert all(n <= MAX_PERIODS for n in periods.values()), periods
        for process in (source, reader, second, third_shm, other_media):
            process.call("close")
