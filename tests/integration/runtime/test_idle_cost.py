"""What an idle system costs: wake-ups and processor time of its threads, as the scheduler counts them.

The limits are three times what a machine shows that is busy with other work, where a wake-up costs more than
on an idle one. A thread that polls again instead of resting exceeds them.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import tensorpool as tp
from tests.remote_process import RemoteProcess

# Handles are ready and idle strategies have backed off by then.
SETTLE_S = 3.0
MEASURE_S = 4.0
TOLERANCE = 3
EMBEDDED = {"wakeups_hz": 255, "cpu_share": 0.015}
ATTACHED = {"wakeups_hz": 110, "cpu_share": 0.0065}


@dataclass(frozen=True)
class ThreadCounts:
    """What the scheduler counted for one thread."""

    name: str
    wakeups: int
    cpu_ns: int


def count_threads() -> dict[str, ThreadCounts]:
    """The counts of all threads of this process."""
    counts = {}
    for task in Path("/proc/self/task").iterdir():
        status = dict(
            line.split(":", 1) for line in (task / "status").read_text().splitlines() if ":" in line
        )
        cpu_ns, _, _ = (task / "schedstat").read_text().split()
        wakeups = int(status["voluntary_ctxt_switches"])
        counts[task.name] = ThreadCounts(status["Name"].strip(), wakeups, int(cpu_ns))
    return counts


class IdleSystem:
    """A process with a context, a producer or not, and a consumer that waits for a frame."""

    def __init__(self, aeron_dir: str, shm_base: str, stream_id: int, embeds: bool) -> None:
        self.context = tp.open(aeron_dir=aeron_dir, shm_base_dir=shm_base)
        self.producer = self.context.producer(stream_id, pools=["64KiB"]) if embeds else None
        self.consumer = self.context.consumer(stream_id)
        assert self.consumer.wait_for_producer(60)
        self.reader = threading.Thread(target=self.consumer.receive_or_none, daemon=True)
        self.reader.start()

    def embeds_driver(self) -> bool:
        """Whether the media driver runs in this process."""
        return any(counts.name == "tp-media-driver" for counts in count_threads().values())

    def measure(self) -> dict[str, Any]:
        """Wake-ups a second and share of a core, in all and by thread."""
        time.sleep(SETTLE_S)
        before, began = count_threads(), time.monotonic()
        time.sleep(MEASURE_S)
        after, seconds = count_threads(), time.monotonic() - began
        threads = {
            f"{counts.name}-{task}": (
                (counts.wakeups - before[task].wakeups) / seconds,
                (counts.cpu_ns - before[task].cpu_ns) / seconds / 1e9,
            )
            for task, counts in after.items()
            if task in before
        }
        wakeups, shares = zip(*threads.values(), strict=True)
        return {"wakeups_hz": sum(wakeups), "cpu_share": sum(shares), "threads": threads, "pid": os.getpid()}

    def close(self) -> None:
        """Ends the wait of the reader."""
        self.consumer.close()
        self.reader.join(60)
        self.context.close()


def assert_within(measured: dict[str, Any], figures: dict[str, float]) -> None:
    """Checks the sums, and shows the threads that exceed them."""
    print({key: value for key, value in measured.items() if key != "pid"})
    for key, figure in figures.items():
        assert measured[key] <= TOLERANCE * figure, measured["threads"]


@pytest.fixture
def arguments(aeron_dir: Path, shm_base: Path, free_stream_id: int) -> tuple[str, str, int]:
    return str(aeron_dir), str(shm_base), free_stream_id + 20_000


def test_idle_system_rests(arguments: tuple[str, str, int]) -> None:
    with RemoteProcess(IdleSystem, *arguments, True) as system:
        # The other would embed the drivers if it were quicker.
        assert system.call("embeds_driver")
        with RemoteProcess(IdleSystem, *arguments, False) as attached:
            assert not attached.call("embeds_driver")
            assert_within(system.call("measure"), EMBEDDED)
            assert_within(attached.call("measure"), ATTACHED)
            attached.call("close")
        system.call("close")


def test_media_driver_that_does_not_rest_is_detected(
    arguments: tuple[str, str, int],
) -> None:
    """A media driver that backs off only to 1 ms shows in these counts, beside one that rests."""
    aeron_dir, base, stream_id = arguments
    with (
        RemoteProcess(IdleSystem, *arguments, True) as resting,
        RemoteProcess(
            IdleSystem,
            f"{aeron_dir}-busy",
            base,
            stream_id,
            True,
            env={"TENSORPOOL_AERON__IDLE": "backoff", "TENSORPOOL_SHM__NAMESPACE": "busy"},
        ) as busy,
    ):
        busy.send("measure")
        rested, not_rested = resting.call("measure"), busy.receive()
        busy.call("close")
        resting.call("close")
    (rests_hz,) = (hz for name, (hz, _) in rested["threads"].items() if "media-driver" in name)
    # The name of Aeron's own thread lists its parts.
    (backs_off_hz,) = (hz for name, (hz, _) in not_rested["threads"].items() if name.startswith("[conductor"))
    assert backs_off_hz > 1.5 * rests_hz > 0
