"""Stream plans: which streams the driver has, with their layout, access rights and metadata. Pure.

Only the configuration defines static streams. Dynamic streams have an id of the range `dynamic_ids` (or any
id, if the settings allow it), and a provisioned layout or the default layout.

Access rights are owner, group and mode of the files and of the directories above them. Clients need only
search permission (`x`) on each directory, and open the file itself. The kernel enforces these rights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypedDict

from ..attributes.tags import MAX_DATA_SOURCE_ID, tags_fault
from ..errors import ConfigError
from ..sbe.wire import ResponseCode
from ..shm import EpochFiles, PoolSpec, parse_pools
from ..shm.epoch_files import HEADER_SLOT_BYTES, SUPERBLOCK_BYTES
from ..units import MAX_STREAM_ID, size_literal
from .config import DriverSettings, StreamSettings, nslots_fault
from .leases import Refusal

LAYOUT_VERSION: Final = 1
PRIVATE_PARENT: Final = 0o700
SHARED_PARENT: Final = 0o711
"""All users may search the directory; only the driver's user may list it."""

_PROVISIONS_VERSION: Final = 1
_MAX_NAME_BYTES: Final = 256
_MAX_NODES: Final = 1024
_SETGID: Final = 0o2000
_SEARCH: Final = 0o011


@dataclass(frozen=True, slots=True)
class Access:
    """Configured access rights: names of users and groups, and the mode of the files."""

    owner: str | None = None
    group: str | None = None
    mode: int | None = None

    @property
    def file_mode(self) -> int:
        """The mode of region files."""
        if self.mode is not None:
            return self.mode
        return 0o600 if self.group is None else 0o660

    @property
    def dir_mode(self) -> int:
        """The mode of the directories of a stream and its epochs: users who may read or write the files may
        list and search them, users who may write the files may write there (wire §15.21a.6)."""
        mode = 0o700 if self.group is None else 0o700 | _SETGID
        for shift in (3, 0):
            bits = self.file_mode >> shift & 0o6
            mode |= (bits | (0o5 if bits else 0)) << shift
        # The driver keeps the directories, because their owner could unlink and replace files. So the owner
        # of the files needs search permission like any other user.
        return mode if self.owner is None else mode | _SEARCH

    @property
    def parent_mode(self) -> int:
        """The mode of the directories of the user and the namespace, which all streams share."""
        is_private = self.owner is None and self.dir_mode & 0o077 == 0
        return PRIVATE_PARENT if is_private else SHARED_PARENT


_PRIVATE: Final = Access()


@dataclass(frozen=True, slots=True)
class StreamLayout:
    """The number of slots of a header ring and of all its pools, and the strides of these pools."""

    nslots: int
    strides: tuple[int, ...]

    @classmethod
    def from_sizes(cls, nslots: int, sizes: Sequence[str | int]) -> StreamLayout:
        """The layout with a pool for each size. Raises ConfigError for an invalid size."""
        return cls(nslots, tuple(pool.stride_bytes for pool in parse_pools(list(sizes))))

    @classmethod
    def from_files(cls, files: EpochFiles) -> StreamLayout:
        """The layout of existing files."""
        return cls(files.nslots, tuple(pool.stride_bytes for pool in files.pools))

    @property
    def pools(self) -> list[PoolSpec]:
        """The pools, with ids from 1."""
        return [PoolSpec(pool_id, stride) for pool_id, stride in enumerate(self.strides, start=1)]

    @property
    def nbytes(self) -> int:
        """The size of all regions."""
        slots = HEADER_SLOT_BYTES + sum(self.strides)
        return SUPERBLOCK_BYTES * (1 + len(self.strides)) + self.nslots * slots

    def __str__(self) -> str:
        return f"{self.nslots} slots of {', '.join(size_literal(stride) for stride in self.strides)}"


class Provision(TypedDict):
    """The provision of one stream in the driver's file."""

    stream_id: int
    nslots: int
    pools: list[int]
    name: str
    tags: list[str]
    data_source_id: int | None
    numa_node: int | None


class Provisions(TypedDict):
    """The content of the file in which a driver keeps its provisions."""

    version: int
    streams: list[Provision]


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """The layout, access rights, limits and metadata of one stream."""

    stream_id: int
    layout: StreamLayout
    is_static: bool
    name: str = ""
    tags: tuple[str, ...] = ()
    data_source_id: int | None = None
    access: Access = _PRIVATE
    quota_bytes: int | None = None
    max_leases: int | None = None
    numa_node: int | None = None
    """The NUMA node of new regions; None: as the policy of the driver's process says."""
    hugepages: bool = False
    base_dir: Path | None = None
    """The configured base directory of this stream."""


class Plan:
    """The plans of all streams: static streams and provisioned dynamic streams."""

    def __init__(self, settings: DriverSettings, quota_bytes: int | None = None) -> None:
        self._settings = settings
        self.quota_bytes = settings.quota_bytes if quota_bytes is None else quota_bytes
        """Largest total size of all files; None: no limit but the filesystem's."""
        self._default = StreamLayout.from_sizes(settings.nslots, settings.pools)
        self._streams = {stream.stream_id: _static_plan(stream, settings) for stream in settings.streams}

    def get(self, stream_id: int) -> StreamPlan | None:
        """The plan of a stream; None without one."""
        return self._streams.get(stream_id)

    def __getitem__(self, stream_id: int) -> StreamPlan:
        return self._streams[stream_id]

    def __len__(self) -> int:
        return len(self._streams)

    def __iter__(self) -> Iterator[StreamPlan]:
        """The plans in the order of their ids."""
        return iter([self._streams[stream_id] for stream_id in sorted(self._streams)])

    @property
    def dynamic_count(self) -> int:
        """The number of dynamic streams."""
        return len(self._streams) - len(self._settings.streams)

    def dynamic(self) -> list[StreamPlan]:
        """The dynamic streams in the order of their provisions."""
        return [plan for plan in self._streams.values() if not plan.is_static]

    def refusal(self, stream_id: int) -> Refusal | None:
        """Why clients may not create this stream; None if they may."""
        settings = self._settings
        if not 0 < stream_id <= MAX_STREAM_ID:
            reason = f"stream id {stream_id} is invalid; use 1 to {MAX_STREAM_ID}"
            return Refusal(ResponseCode.INVALID_PARAMS, reason)
        ranges = (settings.dynamic_ids, settings.bridge_ids)
        if settings.any_stream or any(stream_id in ids for ids in ranges):
            return None
        return Refusal(
            ResponseCode.REJECTED,
            f"stream {stream_id} is not configured, and dynamic streams have ids from "
            f"{' or '.join(f'{ids.first} to {ids.last}' for ids in ranges)} only; use such an id, add the "
            "stream to [[driver.streams]], or set driver.any_stream = true",
        )

    def proposed(
        self,
        stream_id: int,
        *,
        nslots: Any = None,
        pools: Any = None,
        name: Any = None,
        tags: Any = None,
        data_source_id: Any = None,
        numa_node: Any = None,
    ) -> StreamPlan | Refusal:
        """The plan that a client asks for. Omitted values keep the present or the default value. The
        arguments are untrusted and may have any type. The plan is not adopted yet."""
        known = self._streams.get(stream_id)
        if known is None and (refusal := self.refusal(stream_id)) is not None:
            return refusal
        present = known.layout if known is not None else self._default
        layout = _changed_layout(present, nslots, pools)
        if isinstance(layout, Refusal):
            return layout
        fault = _name_fault(name) or _tags_fault(tags) or _source_fault(data_source_id)
        fault = fault or _node_fault(numa_node)
        if fault is not None:
            return Refusal(ResponseCode.INVALID_PARAMS, fault)
        if known is not None and known.is_static:
            if layout == known.layout and numa_node in (None, known.numa_node):
                return known
            if layout == known.layout:
                return Refusal(
                    ResponseCode.REJECTED,
                    f"stream {stream_id} is configured for {_node_text(known.numa_node)}; a client cannot "
                    f"move it to {_node_text(numa_node)}",
                )
            reason = (
                f"stream {stream_id} is configured with {known.layout}; a client cannot change it to {layout}"
            )
            return Refusal(ResponseCode.REJECTED, reason)
        base = known or self.dynamic_plan(stream_id)
        return replace(
            base,
            layout=layout,
            name=base.name if name is None else name,
            tags=base.tags if tags is None else tuple(tags),
            data_source_id=base.data_source_id if data_source_id is None else data_source_id,
            numa_node=base.numa_node if numa_node is None else numa_node,
        )

    def dynamic_plan(self, stream_id: int) -> StreamPlan:
        """The plan of a stream that is not configured."""
        settings = self._settings
        return StreamPlan(
            stream_id,
            self._default,
            is_static=False,
            access=Access(group=settings.group, mode=settings.mode),
            max_leases=settings.max_leases_per_stream,
            hugepages=settings.hugepages,
        )

    def adopt(self, plan: StreamPlan) -> None:
        """Adds or replaces the plan of a stream."""
        self._streams[plan.stream_id] = plan

    def remove(self, stream_id: int) -> None:
        """Removes the plan of a dynamic stream."""
        del self._streams[stream_id]

    def over_quota(self, plan: StreamPlan, *, stream_bytes: int, total_bytes: int) -> Refusal | None:
        """Why files for `plan` would exceed a quota of the stream or the driver; None if they fit."""
        need = plan.layout.nbytes
        limits = (
            (f"stream {plan.stream_id}", stream_bytes, plan.quota_bytes),
            ("the driver", total_bytes, self.quota_bytes),
        )
        for owner, used, quota in limits:
            if quota is not None and used + need > quota:
                reason = f"{plan.layout} take {need} bytes; {owner} has {used} bytes of a quota of {quota}"
                if used:
                    reason += " (old files are removed after the lease's grace)"
                if owner == "the driver":
                    reason += "; set driver.quota or driver.quota_percent for more"
                return Refusal(ResponseCode.REJECTED, reason)
        return None

    # --- provisions on disk

    def dump(self) -> Provisions:
        """The provisions in JSON types."""
        streams: list[Provision] = [
            {
                "stream_id": plan.stream_id,
                "nslots": plan.layout.nslots,
                "pools": list(plan.layout.strides),
                "name": plan.name,
                "tags": list(plan.tags),
                "data_source_id": plan.data_source_id,
                "numa_node": plan.numa_node,
            }
            for plan in self.dynamic()
        ]
        return {"version": _PROVISIONS_VERSION, "streams": streams}

    def load(self, dumped: object) -> list[str]:
        """Adopts the provisions of an earlier driver. Returns why entries were skipped."""
        is_known = isinstance(dumped, dict) and dumped.get("version") == _PROVISIONS_VERSION
        streams = dumped.get("streams") if isinstance(dumped, dict) and is_known else None
        if not isinstance(streams, list):
            return ["the file has no provisions of a known version"]
        faults = []
        newest = streams[-self._settings.max_streams :] if self._settings.max_streams else []
        for entry in newest:
            plan = self._load_entry(entry)
            if isinstance(plan, str):
                faults.append(plan)
            elif plan is not None:
                self.adopt(plan)
        return faults

    def _load_entry(self, entry: object) -> StreamPlan | str | None:
        """The plan of an entry; a text says why it is invalid; None: the stream is static now."""
        if not isinstance(entry, Mapping) or type(stream_id := entry.get("stream_id")) is not int:
            return "an entry has no stream_id"
        known = self._streams.get(stream_id)
        if known is not None and known.is_static:
            # The configuration takes precedence over a saved provision.
            return None
        keys = ("nslots", "pools", "name", "tags", "data_source_id", "numa_node")
        plan = self.proposed(stream_id, **{key: entry.get(key) for key in keys})
        return f"stream {stream_id}: {plan.reason}" if isinstance(plan, Refusal) else plan


def _static_plan(stream: StreamSettings, settings: DriverSettings) -> StreamPlan:
    return StreamPlan(
        stream.stream_id,
        StreamLayout.from_sizes(stream.nslots, stream.pools),
        is_static=True,
        name=stream.name,
        tags=stream.tags,
        data_source_id=stream.data_source_id,
        access=Access(
            stream.owner,
            stream.group or settings.group,
            settings.mode if stream.mode is None else stream.mode,
        ),
        quota_bytes=stream.quota_bytes,
        max_leases=stream.max_leases or settings.max_leases_per_stream,
        numa_node=stream.numa_node,
        hugepages=stream.hugepages,
        base_dir=stream.base_dir,
    )


def _changed_layout(layout: StreamLayout, nslots: Any, pools: Any) -> StreamLayout | Refusal:
    if nslots is not None:
        fault = nslots_fault(nslots) if type(nslots) is int else "use a whole number"
        if fault is not None:
            return Refusal(ResponseCode.INVALID_PARAMS, f"nslots {nslots!r}: {fault}")
        layout = replace(layout, nslots=nslots)
    if pools is None:
        return layout
    sizes = [pools] if isinstance(pools, str | int) else pools
    if not isinstance(sizes, Sequence) or not all(type(size) in (str, int) for size in sizes):
        return Refusal(ResponseCode.INVALID_PARAMS, f"pools {pools!r}: use a list of sizes, as in ['1MiB']")
    try:
        return StreamLayout.from_sizes(layout.nslots, sizes)
    except ConfigError as error:
        return Refusal(ResponseCode.INVALID_PARAMS, str(error))


def _name_fault(name: Any) -> str | None:
    is_text = isinstance(name, str) and name.isprintable()
    if name is None or (is_text and len(name.encode()) <= _MAX_NAME_BYTES):
        return None
    return f"name {name!r}: use up to {_MAX_NAME_BYTES} bytes of visible characters"


def _tags_fault(tags: Any) -> str | None:
    if tags is None:
        return None
    if not isinstance(tags, list | tuple) or not all(isinstance(tag, str) for tag in tags):
        return f"tags {tags!r}: use a list of texts"
    return tags_fault(tags)


def _source_fault(number: Any) -> str | None:
    if number is None or (type(number) is int and 0 <= number <= MAX_DATA_SOURCE_ID):
        return None
    return f"data_source_id {number!r}: use a whole number from 0 to {MAX_DATA_SOURCE_ID}"


def _node_fault(node: Any) -> str | None:
    if node is None or (type(node) is int and 0 <= node < _MAX_NODES):
        return None
    return f"numa_node {node!r}: use the number of a NUMA node, as in 0"


def _node_text(node: int | None) -> str:
    return "no NUMA node" if node is None else f"NUMA node {node}"
