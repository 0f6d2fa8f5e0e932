"""Settings of the driver: `[driver]` and `[[driver.streams]]`.

Base directory and namespace are in `[shm]`, stream ids and the announce period in `[aeron]`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from ..attributes.tags import MAX_DATA_SOURCE_ID, tags_fault
from ..discovery.channels import channels_fault
from ..errors import ConfigError
from ..runtime.config import (
    DurationNs,
    FileMode,
    IdRange,
    Secret,
    SizeBytes,
    parse_duration,
    setting,
    settings,
    table,
)
from ..shm.ownership import DEFAULT_POOLS, parse_pools
from ..units import MAX_STREAM_ID, parse_size

MAX_DIMS: Final = 8
"""The number of dimensions in a tensor header."""
MAX_NSLOTS: Final = 1 << 20
DEFAULT_NSLOTS: Final = 8
DEFAULT_STRIDES: Final = tuple(parse_size(size) for size in DEFAULT_POOLS)

DEFAULT_DYNAMIC_IDS: Final = IdRange(20_000, 29_999)
DEFAULT_BRIDGE_IDS: Final = IdRange(50_000, 59_999)
"""Stream ids of the destinations of bridges."""

_INSTANCE_ID: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,31}")


def nslots_fault(nslots: int) -> str | None:
    """Why a header ring cannot have this number of slots; None for a valid number."""
    if not 0 < nslots <= MAX_NSLOTS or nslots & (nslots - 1):
        return f"use a power of two from 1 to {MAX_NSLOTS}, as in {DEFAULT_NSLOTS}"
    return None


def pools_fault(strides: Sequence[int]) -> str | None:
    """Why these pool sizes are invalid; None for valid sizes."""
    try:
        parse_pools(list(strides))
    except ConfigError as error:
        return str(error)
    return None


def _name_fault(text: str) -> str | None:
    return None if not text or (text.isprintable() and text == text.strip()) else "use visible characters"


def _dynamic_ids_fault(ids: IdRange) -> str | None:
    if ids.first < 1 or ids.last > MAX_STREAM_ID:
        return f"use ids from 1 to {MAX_STREAM_ID}, as in '{DEFAULT_DYNAMIC_IDS}'"
    return None


def _instance_fault(text: str) -> str | None:
    if not text or _INSTANCE_ID.fullmatch(text):
        return None
    return "use up to 32 of letters, digits, - _ . and no leading dot"


@table
class StreamSettings:
    """A static stream: the driver always has it, and no client can change its layout."""

    stream_id: int = setting("Stream id.", minimum=1, maximum=MAX_STREAM_ID)
    name: str = setting("Name of the data source.", default="", check=_name_fault)
    nslots: int = setting(
        "Slots of the header ring, a power of two: the frames that a consumer may lag behind.",
        default=DEFAULT_NSLOTS,
        check=nslots_fault,
    )
    pools: tuple[SizeBytes, ...] = setting(
        "Strides of the payload pools, each a power of two.", default=DEFAULT_STRIDES, check=pools_fault
    )
    tags: tuple[str, ...] = setting("Tags for discovery.", default=(), check=tags_fault)
    data_source_id: int | None = setting(
        "Data source id for discovery, for example from a catalogue of sources.",
        default=None,
        minimum=0,
        maximum=MAX_DATA_SOURCE_ID,
    )
    owner: str | None = setting(
        "User who owns the files; only a driver that runs as root can set it.", default=None
    )
    group: str | None = setting(
        "Group that may map the regions. None: the group of `[driver]`.", default=None
    )
    mode: FileMode | None = setting(
        "Permission bits of the files. None: 0660 with a group, else 0600.", default=None
    )
    quota_bytes: SizeBytes | None = setting(
        "Largest total size of the stream's files, including old files that are not removed yet. None: no "
        "limit.",
        default=None,
    )
    max_leases: int | None = setting(
        "Largest number of leases. None: the limit of `[driver]`.", default=None, minimum=1
    )
    numa_node: int | None = setting(
        "NUMA node of the regions. None: as the policy of the driver's process says.", default=None, minimum=0
    )
    hugepages: bool = setting(
        "Create regions on hugepages only: in `hugepages_dir` of `[driver]`, or in the base directory if "
        "that is on hugetlbfs.",
        default=False,
    )
    base_dir: Path | None = setting(
        "Base directory of this stream; clients have it in `allowed_base_dirs`. None: `hugepages_dir` for a "
        "stream on hugepages, else that of `[shm]`.",
        default=None,
    )


@settings("driver")
class DriverSettings:
    """The SHM driver: owner of a namespace's regions."""

    instance_id: str = setting(
        "Instance id, part of the regions' path; for several drivers with the same namespace.",
        default="",
        check=_instance_fault,
    )
    keepalive_ns: DurationNs = setting(
        "Period of keepalives.",
        default=parse_duration("1s"),
        minimum=parse_duration("10ms"),
    )
    grace: int = setting("Missed keepalives after which a lease ends.", default=3, minimum=1, maximum=1000)
    nslots: int = setting(
        "Slots of the header ring of a stream without a provision.", default=8, check=nslots_fault
    )
    pools: tuple[SizeBytes, ...] = setting(
        "Strides of the payload pools of a stream without a provision.",
        default=DEFAULT_STRIDES,
        check=pools_fault,
    )
    dynamic_ids: IdRange = setting(
        f"Stream ids of dynamic streams, which clients may create; from 1 to {MAX_STREAM_ID}.",
        default=DEFAULT_DYNAMIC_IDS,
        check=_dynamic_ids_fault,
    )
    bridge_ids: IdRange = setting(
        "Stream ids of dynamic streams that bridges create for what they receive.",
        default=DEFAULT_BRIDGE_IDS,
        check=_dynamic_ids_fault,
    )
    any_stream: bool = setting("Clients may create dynamic streams with any id.", default=False)
    max_streams: int = setting(
        "Largest number of dynamic streams with files or leases.", default=10_000, minimum=0
    )
    max_leases: int = setting(
        "Largest number of leases of all streams, reserved ones included.", default=16_384, minimum=1
    )
    max_requests_per_second: int = setting(
        "Attach requests a second that are handled at once, of all clients. Beyond that a request is handled "
        "when its client repeats it, about 0.1 s later. Twice as many may come at once.",
        default=4_000,
        minimum=1,
    )
    max_requests_per_image: int = setting(
        "The same for one Aeron image. Clients of one media driver usually share an image.",
        default=4_000,
        minimum=1,
    )
    max_leases_per_stream: int | None = setting(
        "Largest number of leases of a stream. None: no limit.", default=None, minimum=1
    )
    quota_bytes: SizeBytes | None = setting(
        "Largest total size of all files, including old files that are not removed yet. None: "
        "`quota_percent` of the filesystem.",
        default=None,
    )
    quota_percent: int = setting(
        "Largest total size of all files, as a share of the base directory's filesystem, if `quota` is not "
        "set. 100: no limit but the filesystem's.",
        default=90,
        minimum=1,
        maximum=100,
    )
    release_idle_ns: DurationNs = setting(
        "Time without a lease after which the driver removes the files of a dynamic stream.",
        default=parse_duration("60s"),
    )
    recreate_at_start: bool = setting(
        "At the start, remove all files of a dead driver, also fresh ones, and create the files of all "
        "static streams.",
        default=False,
    )
    group: str | None = setting("Group that may map the regions. None: only the driver's user.", default=None)
    mode: FileMode | None = setting(
        "Permission bits of the files. None: 0660 with a group, else 0600.", default=None
    )
    hugepages: bool = setting("Create dynamic streams on hugepages only.", default=False)
    hugepages_dir: Path | None = setting(
        "Base directory on hugetlbfs for streams on hugepages, beside that of `[shm]` for all others; "
        "clients have it in `allowed_base_dirs`. None: streams on hugepages need a base directory on "
        "hugetlbfs.",
        default=None,
    )
    prefault: bool = setting(
        "Touch all pages of new regions: an attach takes longer, and the first frames are faster.",
        default=False,
    )
    mlock: bool = setting("Lock the regions in memory, so that they are never swapped out.", default=False)
    shutdown_token: Secret | None = setting(
        "Token that ShmDriverShutdownRequest must have. It prevents accidents and is no security boundary: "
        "every process that can open the media driver's directory can read the stream. None: no message can "
        "stop the driver.",
        default=None,
    )
    announce_to: tuple[str, ...] = setting(
        "Channels on which the driver repeats announces and metadata, for registries on other machines, as "
        "in `aeron:udp?endpoint=registry.example.org:40125`.",
        default=(),
        check=channels_fault,
    )
    streams: tuple[StreamSettings, ...] = setting("Static streams.", default=())

    @property
    def lease_ns(self) -> int:
        """The duration of a lease without a keepalive."""
        return self.keepalive_ns * self.grace

    def check(self) -> Iterator[tuple[str, str]]:
        """Yields (key, reason) for values that contradict each other."""
        if self.shutdown_token is not None and not self.shutdown_token.reveal():
            yield "shutdown_token", "is empty; remove it, or set a token that is not empty"
        if not self.any_stream and self.dynamic_ids.overlaps(self.bridge_ids):
            yield (
                "dynamic_ids",
                f"overlaps bridge_ids, {self.bridge_ids}: clients and bridges would take each other's ids; "
                f"end it at {self.bridge_ids.first - 1}, or move bridge_ids",
            )
        for stream_id, count in Counter(stream.stream_id for stream in self.streams).items():
            if count > 1:
                yield "streams", f"stream {stream_id} is configured {count} times; keep one entry"
