"""Whatever dies, the model is back within three announce periods of the system's own return: measured."""

from __future__ import annotations

import time
from typing import Any

import pytest

import tensorpool as tp
from tensorpool.runtime.runner import Runner
from tensorpool.supervisor.agent import SupervisorAgent
from tensorpool.supervisor.config import SupervisorSettings
from tests.integration.supervisor.station import Station
from tests.remote import PATIENCE, Remote

# Longer than a busy machine stands still, so that it is the announces that are measured.
ANNOUNCE_S = 2.0
MOST_PERIODS = 3.0
MS = 1_000_000


class Reader(Station):
    """Opens when it is told where, and knows when it has its frames again."""

    def __init__(self) -> None:
        pass

    def open(self, **options: Any) -> None:
        super().__init__(mode="driver", media_driver="external", **options)

    def back_at(self, name: str, after: int) -> tuple[float, int]:
        """When it had a later epoch, on the clock that all processes have; and which."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            standing = self.standing(name)
            epoch = self.readers[name].epoch
            if standing["phase"] == "mapped" and epoch is not None and epoch > after:
                return time.monotonic(), epoch
            time.sleep(0.002)
        raise TimeoutError(f"{name} is still in {self.standing(name)}")


class Media:
    """A media driver that may be killed."""

    def open(self, aeron_dir: str) -> None:
        self.driver = tp.MediaDriver(aeron_dir)

    def close(self) -> None:
        self.driver.close()


class Shm:
    """An SHM driver that may be killed."""

    def open(self, **options: Any) -> None:
        self.context = tp.open("embedded", media_driver="external", **options)

    def close(self) -> None:
        self.context.close()


class Tower:
    """A supervisor that may be killed, and when it sees what."""

    def open(self, **options: Any) -> float:
        """When it was ready."""
        self.context = tp.open("standalone", media_driver="external", **options)
        self.agent = SupervisorAgent(self.context, settings=SupervisorSettings(look_ns=50 * MS))
        self.runner = Runner(self.agent)
        self.runner.start()
        deadline = time.monotonic() + PATIENCE
        while not self.agent.is_ready():
            assert time.monotonic() < deadline, "the supervisor hears nothing"
            time.sleep(0.001)
        return time.monotonic()

    def whole_at(self, stream_id: int, epoch: int) -> tuple[float, float]:
        """Since when it hears again, and when everybody was in the model, in that epoch or a later one.

        A reader may be back before its producer, which then gets another epoch.
        """
        deadline, deaf = time.monotonic() + PATIENCE, 0.0
        while not self._is_whole(stream_id, epoch):
            assert time.monotonic() < deadline, self.agent.latest.stream(stream_id)
            deaf = deaf if self.agent.is_ready() else time.monotonic()
            time.sleep(0.002)
        return deaf, time.monotonic()

    def _is_whole(self, stream_id: int, epoch: int) -> bool:
        stream = self.agent.latest.stream(stream_id)
        return (
            stream is not None
            and stream.state in ("live", "quiet")
            and stream.epoch >= epoch
            and stream.name == "camera"
            and stream.producer is not None
            and stream.producer.epoch == stream.epoch
            and [one.epoch for one in stream.consumers] == [stream.epoch]
        )

    def close(self) -> None:
        self.runner.close()
        self.context.close()


@pytest.mark.long
@pytest.mark.leaves_files
def test_the_picture_is_back_within_three_announce_periods(
    aeron_dir: Any, shm_base: Any, free_stream_id: int
) -> None:
    options: dict[str, Any] = {
        "aeron_dir": str(aeron_dir),
        "shm_base_dir": str(shm_base),
        "announce_period": ANNOUNCE_S,
    }
    measured: dict[str, float] = {}
    with (
        Remote(Media) as media, Remote(Media) as other_media,
        Remote(Shm) as shm, Remote(Shm) as second_shm, Remote(Shm) as third_shm,
        Remote(Reader) as source, Remote(Reader) as reader,
        Remote(Tower) as tower, Remote(Tower) as other_tower,
    ):  # fmt: skip
        media.call("open", aeron_dir=str(aeron_dir))
        shm.call("open", **options)
        for one in (source, reader):
            one.call("open", **options)
        source.call("produce", stream_id=free_stream_id, name="camera")
        reader.call("consume", name="one", stream_id=free_stream_id)
        _, epoch = reader.call("back_at", name="one", after=0)

        def seen(by: Remote, since: float, epoch: int) -> float:
            hears, whole = by.call("whole_at", stream_id=free_stream_id, epoch=epoch)
            return max(whole - max(since, hears), 0.0)

        measured["its start"] = seen(tower, tower.call("open", **options), epoch)
        tower.kill()
        measured["its own death"] = seen(other_tower, other_tower.call("open", **options), epoch)

        def back(what: str, before: int) -> int:
            since, epoch = reader.call("back_at", name="one", after=before)
            measured[what] = seen(other_tower, since, epoch)
            return int(epoch)

        shm.kill()
        second_shm.call("open", **options)
        epoch = back("the SHM driver's death", epoch)

        media.kill()
        second_shm.kill()
        other_media.call("open", aeron_dir=str(aeron_dir))
        third_shm.call("open", **options)
        back("the media driver's death", epoch)

        periods = {what: seconds / ANNOUNCE_S for what, seconds in measured.items()}
        print({what: f"{n:.2f} announce periods" for what, n in periods.items()})
        assert all(n <= MOST_PERIODS for n in periods.values()), periods
        for one in (source, reader, other_tower, third_shm, other_media):
            one.call("close")
