"""What a driver can be told by file and environment: `[driver]` and `[[driver.streams]]`.

Base directory and namespace are those of `[shm]`, stream ids and the announce period those of `[aeron]`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from ..attributes.tags import MAX_DATA_SOURCE_ID, tags_fault
from ..discovery.channels import channels_fault
from ..errors import ConfigError
from ..runtime.config import DurationNs, FileMode, Secret, SizeBytes, parse_duration, setting, settings, table
from ..shm.ownership import DEFAULT_POOLS, parse_pools
from ..units import parse_size

MAX_DIMS: Final = 8
"""What a tensor header has room for."""
MAX_STREAM_ID: Final = 0xFFFF_FFFE
"""The one above is the wire's null."""
MAX_NSLOTS: Final = 1 << 20
DEFAULT_NSLOTS: Final = 8
DEFAULT_STRIDES: Final = tuple(parse_size(size) for size in DEFAULT_POOLS)

_INSTANCE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,31}")


def nslots_fault(nslots: int) -> str | None:
    """Why a ring cannot have that many slots."""
    if not 0 < nslots <= MAX_NSLOTS or nslots & (nslots - 1):
        return f"use a power of two from 1 to {MAX_NSLOTS}, as in {DEFAULT_NSLOTS}"
    return None


def pools_fault(strides: Sequence[int]) -> str | None:
    """Why there can be no such pools."""
    try:
        parse_pools(list(strides))
    except ConfigError as error:
        return str(error)
    return None


def _visible(text: str) -> str | None:
    return None if not text or (text.isprintable() and text == text.strip()) else "use visible characters"


def _instance_fault(text: str) -> str | None:
    if not text or _INSTANCE.fullmatch(text):
        return None
    return "use up to 32 of letters, digits, - _ . and no leading dot"


@table
class StreamSettings:
    """A stream that the driver always has, with a layout that no client can change."""

    stream_id: int = setting("Its id.", minimum=1, maximum=MAX_STREAM_ID)
    name: str = setting("What people call it.", default="", check=_visible)
    nslots: int = setting(
        "How many frames a reader may lag behind: a power of two.",
        default=DEFAULT_NSLOTS,
        check=nslots_fault,
    )
    pools: tuple[SizeBytes, ...] = setting(
        "Size classes of payloads, each a power of two.", default=DEFAULT_STRIDES, check=pools_fault
    )
    tags: tuple[str, ...] = setting("Words to find it by.", default=(), check=tags_fault)
    data_source_id: int | None = setting(
        "A number to find it by, as a catalogue of sources has it.",
        default=None,
        minimum=0,
        maximum=MAX_DATA_SOURCE_ID,
    )
    owner: str | None = setting(
        "The user whom the files belong to; takes a driver that is root.", default=None
    )
    group: str | None = setting("The group that may map it. None: the driver's own setting.", default=None)
    mode: FileMode | None = setting(
        "Permission bits of the files. None: 0660 where there is a group, else 0600.", default=None
    )
    quota_bytes: SizeBytes | None = setting(
        "Most memory for its files, old ones that are not yet gone included. None: no limit.", default=None
    )
    max_leases: int | None = setting(
        "Most leases at a time. None: the driver's own setting.", default=None, minimum=1
    )
    max_dims: int = setting("Most dimensions of a tensor.", default=MAX_DIMS, minimum=1, maximum=MAX_DIMS)
    hugepages: bool = setting(
        "Only ever on huge pages: the base directory has to be on hugetlbfs.", default=False
    )


@settings("driver")
class DriverSettings:
    """The SHM driver: the one owner of a namespace's memory."""

    instance_id: str = setting(
        "Part of the path, where several drivers share a namespace's name.",
        default="",
        check=_instance_fault,
    )
    keepalive_ns: DurationNs = setting(
        "How often clients say that they are there.",
        default=parse_duration("1s"),
        minimum=parse_duration("10ms"),
    )
    grace: int = setting(
        "A lease ends after this many missed keepalives.", default=3, minimum=1, maximum=1000
    )
    nslots: int = setting("Slots of a stream that nobody has described.", default=8, check=nslots_fault)
    pools: tuple[SizeBytes, ...] = setting(
        "Pools of a stream that nobody has described.", default=DEFAULT_STRIDES, check=pools_fault
    )
    dynamic_first: int = setting(
        "The first id that clients may have streams made for.",
        default=20_000,
        minimum=1,
        maximum=MAX_STREAM_ID,
    )
    dynamic_last: int = setting("The last one.", default=29_999, minimum=1, maximum=MAX_STREAM_ID)
    any_stream: bool = setting("Clients may have a stream of any id made.", default=False)
    max_streams: int = setting(
        "Most streams made for clients that have files or leases at a time.", default=10_000, minimum=0
    )
    max_leases_per_stream: int | None = setting(
        "Most leases of one stream. None: no limit.", default=None, minimum=1
    )
    quota_bytes: SizeBytes | None = setting(
        "Most memory for all files, old ones that are not yet gone included. None: what the filesystem has.",
        default=None,
    )
    release_idle_ns: DurationNs = setting(
        "After this long without a lease a stream made for a client loses its files.",
        default=parse_duration("60s"),
    )
    recreate_at_start: bool = setting(
        "At the start, removes what a dead driver left, however fresh, and makes the files of all streams.",
        default=False,
    )
    group: str | None = setting(
        "The group that may map the memory. None: the driver's user alone.", default=None
    )
    mode: FileMode | None = setting(
        "Permission bits of the files. None: 0660 where there is a group, else 0600.", default=None
    )
    hugepages: bool = setting("Streams made for clients are only ever on huge pages.", default=False)
    prefault: bool = setting(
        "Touches all memory when it is made: an attach takes longer, and the first frames do not.",
        default=False,
    )
    mlock: bool = setting("Keeps the memory from being swapped out.", default=False)
    shutdown_token: Secret | None = setting(
        "ShmDriverShutdownRequest must carry it. Guards against accidents: who can open the media driver's "
        "directory can read the stream. None: nobody can stop the driver by message.",
        default=None,
    )
    announce_to: tuple[str, ...] = setting(
        "Channels on which announces and metadata are said again, for registries on other machines, as in "
        "`aeron:udp?endpoint=registry.example.org:40125`.",
        default=(),
        check=channels_fault,
    )
    streams: tuple[StreamSettings, ...] = setting("Streams that it always has.", default=())

    @property
    def lease_ns(self) -> int:
        """How long a lease lives without a keepalive."""
        return self.keepalive_ns * self.grace

    def check(self) -> Iterator[tuple[str, str]]:
        if self.dynamic_first > self.dynamic_last:
            yield "dynamic_last", f"comes before dynamic_first, which is {self.dynamic_first}"
        if self.shutdown_token is not None and not self.shutdown_token.reveal():
            yield "shutdown_token", "is empty, which would protect nothing"
        for stream_id, count in Counter(one.stream_id for one in self.streams).items():
            if count > 1:
                yield "streams", f"stream {stream_id} is there {count} times"
