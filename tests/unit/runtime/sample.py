"""Settings of a sample role, with one setting of every kind."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Literal

from tensorpool.runtime.config import (
    DurationNs,
    FileMode,
    IdRange,
    Secret,
    SizeBytes,
    parse_duration,
    parse_size,
    setting,
    settings,
    table,
)


class Shade(Enum):
    LIGHT = "light"
    DARK = "dark"


def power_of_two(value: int) -> str | None:
    return None if value > 0 and value & (value - 1) == 0 else "must be a power of two"


@table
class StreamSettings:
    """One stream."""

    stream_id: int = setting("Its id.", minimum=1)
    name: str = setting("Its name.", default="")
    nslots: int = setting("Slots of its ring.", default=8, check=power_of_two)
    pools_bytes: tuple[SizeBytes, ...] = setting("Sizes of payloads.", default=(parse_size("1MiB"),))


@table
class LimitSettings:
    """Bounds."""

    leases: int = setting("Leases.", default=64, minimum=1, maximum=1024)
    total_bytes: SizeBytes = setting("Memory.", default=parse_size("4GiB"), live=True)


@settings("sample")
class SampleSettings:
    """A role with one of everything."""

    namespace: str = setting("Its name space.", default="default", flag="--namespace")
    period_ns: DurationNs = setting(
        "How often.", default=parse_duration("1s"), minimum=parse_duration("10ms"), live=True
    )
    ratio: float = setting("A share.", default=0.5, minimum=0, maximum=1)
    prefault: bool = setting("Touch all memory first.", default=True, flag="--prefault")
    base: Path = setting("Where.", default=Path("/dev/shm"))
    mode: FileMode = setting("Permissions.", default=0o640)
    order: Literal["row", "column"] = setting("Which comes first.", default="row")
    shade: Shade = setting("How dark.", default=Shade.LIGHT)
    ids: IdRange | None = setting("Ids for all comers.", default=None)
    token: Secret | None = setting("Needed to stop it.", default=None)
    tags: tuple[str, ...] = setting("Words.", default=(), flag="--tag", live=True)
    limits: LimitSettings = setting("Bounds.", default=LimitSettings(leases=32))
    streams: tuple[StreamSettings, ...] = setting("Streams.", default=())

    def check(self) -> Iterator[tuple[str, str]]:
        for stream in self.streams:
            if self.ids is not None and stream.stream_id in self.ids:
                yield "ids", f"holds stream {stream.stream_id}, which has an entry of its own"
