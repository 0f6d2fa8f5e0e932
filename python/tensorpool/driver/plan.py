"""Which streams there are, and what each is to look like. Pure.

Static streams are in the configuration, and nothing else changes them. Dynamic ones have an id from a range
(or any, where the settings say so) and the layout that somebody provisioned them with, or the default.

Who may map a stream's memory: owner, group and mode of its files and of the directories above them.

Pure. The kernel does the enforcing; here is what it is told. Clients walk down to a region with nothing but
the right to pass (`x`) on each directory, and open the file itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ..attributes.tags import MAX_DATA_SOURCE_ID, tags_fault
from ..errors import ConfigError
from ..sbe.wire import ResponseCode
from ..shm import EpochFiles, parse_pools
from ..units import size_literal
from .config import MAX_STREAM_ID, DriverSettings, StreamSettings, nslots_fault
from .leases import Refusal

PRIVATE_PARENT: Final = 0o700
SHARED_PARENT: Final = 0o711
"""Anyone may pass through to what the directories below let them; nobody else may list."""

_SETGID: Final = 0o2000
_PASS: Final = 0o011


@dataclass(frozen=True, slots=True)
class Access:
    """As configured: names, not ids. `mode` is that of the files."""

    owner: str | None = None
    group: str | None = None
    mode: int | None = None

    @property
    def file_mode(self) -> int:
        if self.mode is not None:
            return self.mode
        return 0o600 if self.group is None else 0o660

    @property
    def dir_mode(self) -> int:
        """For the directories of the stream and of its epochs: who may read or write the files may list
        them and pass, who may write them may write there (wire §15.21a.6)."""
        mode = 0o700 if self.group is None else 0o700 | _SETGID
        for shift in (3, 0):
            bits = self.file_mode >> shift & 0o6
            mode |= (bits | (0o5 if bits else 0)) << shift
        # Directories stay the driver's, or an owner could unlink and replace what is in them. So the owner
        # of the files is a stranger there, and all it needs is to pass.
        return mode if self.owner is None else mode | _PASS

    @property
    def parent_mode(self) -> int:
        """For the directories of the user and of the namespace, which all streams share."""
        is_private = self.owner is None and self.dir_mode & 0o077 == 0
        return PRIVATE_PARENT if is_private else SHARED_PARENT


HEADER_SLOT_BYTES: Final = 256
SUPERBLOCK_BYTES: Final = 64
LAYOUT_VERSION: Final = 1
_MAX_NAME = 256
_PRIVATE: Final = Access()


@dataclass(frozen=True, slots=True)
class Layout:
    """A ring of slots, and a payload pool for each size class. All pools have the ring's slot count."""

    nslots: int
    strides: tuple[int, ...]

    @classmethod
    def of(cls, nslots: int, sizes: Iterable[int]) -> Layout:
        return cls(nslots, tuple(stride for _, stride in parse_pools(list(sizes))))

    @classmethod
    def of_files(cls, files: EpochFiles) -> Layout:
        return cls(files.nslots, tuple(stride for _, stride, _ in files.pools))

    @property
    def pools(self) -> list[tuple[int, int]]:
        """(pool id, stride): ids count from 1."""
        return list(enumerate(self.strides, start=1))

    @property
    def nbytes(self) -> int:
        """What all regions take together."""
        slots = HEADER_SLOT_BYTES + sum(self.strides)
        return SUPERBLOCK_BYTES * (1 + len(self.strides)) + self.nslots * slots

    def __str__(self) -> str:
        return f"{self.nslots} slots of {', '.join(size_literal(stride) for stride in self.strides)}"


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """What one stream is to look like."""

    stream_id: int
    layout: Layout
    is_static: bool
    name: str = ""
    tags: tuple[str, ...] = ()
    data_source_id: int | None = None
    access: Access = _PRIVATE
    quota_bytes: int | None = None
    max_leases: int | None = None
    max_dims: int = 8
    hugepages: bool = False


class Plan:
    """All streams that are provisioned."""

    def __init__(self, settings: DriverSettings) -> None:
        self._settings = settings
        self._default = Layout.of(settings.nslots, settings.pools)
        self._streams = {one.stream_id: _static(one, settings) for one in settings.streams}

    def get(self, stream_id: int) -> StreamPlan | None:
        return self._streams.get(stream_id)

    def __getitem__(self, stream_id: int) -> StreamPlan:
        return self._streams[stream_id]

    def __len__(self) -> int:
        return len(self._streams)

    def __iter__(self) -> Iterator[StreamPlan]:
        """By id."""
        return iter([self._streams[stream_id] for stream_id in sorted(self._streams)])

    @property
    def dynamic_count(self) -> int:
        return len(self._streams) - len(self._settings.streams)

    def dynamic(self) -> list[StreamPlan]:
        """In the order in which they were provisioned."""
        return [one for one in self._streams.values() if not one.is_static]

    def refusal(self, stream_id: int) -> Refusal | None:
        """Why clients may not have this stream made; None if they may."""
        settings = self._settings
        if not 0 < stream_id <= MAX_STREAM_ID:
            reason = f"stream id {stream_id} is none; use 1 to {MAX_STREAM_ID}"
            return Refusal(ResponseCode.INVALID_PARAMS, reason)
        if settings.any_stream or settings.dynamic_first <= stream_id <= settings.dynamic_last:
            return None
        return Refusal(
            ResponseCode.REJECTED,
            f"stream {stream_id} is not configured, and streams are made on demand from "
            f"{settings.dynamic_first} to {settings.dynamic_last} only; use one of those, or add it to "
            "[[driver.streams]]",
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
    ) -> StreamPlan | Refusal:
        """The stream as somebody wants it; what they leave out stays as it is, or is the default. The
        arguments come from outside and may be anything. Nothing is taken over yet."""
        known = self._streams.get(stream_id)
        if known is None and (refusal := self.refusal(stream_id)) is not None:
            return refusal
        before = known.layout if known is not None else self._default
        layout = _parsed(before, nslots, pools)
        if isinstance(layout, Refusal):
            return layout
        fault = _name_fault(name) or _tags_fault(tags) or _source_fault(data_source_id)
        if fault is not None:
            return Refusal(ResponseCode.INVALID_PARAMS, fault)
        if known is not None and known.is_static:
            if layout == known.layout:
                return known
            reason = f"stream {stream_id} is configured with {known.layout}; {layout} cannot be had there"
            return Refusal(ResponseCode.REJECTED, reason)
        base = known or self._dynamic(stream_id)
        return replace(
            base,
            layout=layout,
            name=base.name if name is None else name,
            tags=base.tags if tags is None else tuple(tags),
            data_source_id=base.data_source_id if data_source_id is None else data_source_id,
        )

    def _dynamic(self, stream_id: int) -> StreamPlan:
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
        self._streams[plan.stream_id] = plan

    def forget(self, stream_id: int) -> None:
        del self._streams[stream_id]

    def over_quota(self, plan: StreamPlan, *, stream_bytes: int, total_bytes: int) -> Refusal | None:
        """Whether files for `plan` fit beside what the stream and the driver have already."""
        need = plan.layout.nbytes
        limits = (
            (f"stream {plan.stream_id}", stream_bytes, plan.quota_bytes),
            ("the driver", total_bytes, self._settings.quota_bytes),
        )
        for who, has, quota in limits:
            if quota is not None and has + need > quota:
                reason = f"{plan.layout} take {need} bytes; {who} has {has} bytes of a quota of {quota}"
                if has:
                    reason += " (old files go after the lease's grace)"
                return Refusal(ResponseCode.REJECTED, reason)
        return None

    # --- what a restarted driver still knows

    def dump(self) -> dict[str, Any]:
        """The provisions as JSON holds them."""
        streams = [
            {
                "stream_id": one.stream_id,
                "nslots": one.layout.nslots,
                "pools": list(one.layout.strides),
                "name": one.name,
                "tags": list(one.tags),
                "data_source_id": one.data_source_id,
            }
            for one in self.dynamic()
        ]
        return {"version": 1, "streams": streams}

    def load(self, dumped: object) -> list[str]:
        """Takes over what an earlier driver wrote; what no longer fits is left out. Returns why."""
        streams = dumped.get("streams") if isinstance(dumped, dict) and dumped.get("version") == 1 else None
        if not isinstance(streams, list):
            return ["there are no provisions in it"]
        faults = []
        newest = streams[-self._settings.max_streams :] if self._settings.max_streams else []
        for entry in newest:
            found = self._loaded(entry)
            if isinstance(found, str):
                faults.append(found)
            elif found is not None:
                self.adopt(found)
        return faults

    def _loaded(self, entry: object) -> StreamPlan | str | None:
        if not isinstance(entry, Mapping) or type(stream_id := entry.get("stream_id")) is not int:
            return "an entry names no stream"
        known = self._streams.get(stream_id)
        if known is not None and known.is_static:
            # It was made static since: the configuration has the last word.
            return None
        words = {name: entry.get(name) for name in ("nslots", "pools", "name", "tags", "data_source_id")}
        found = self.proposed(stream_id, **words)
        return f"stream {stream_id}: {found.reason}" if isinstance(found, Refusal) else found


def _static(one: StreamSettings, settings: DriverSettings) -> StreamPlan:
    return StreamPlan(
        one.stream_id,
        Layout.of(one.nslots, one.pools),
        is_static=True,
        name=one.name,
        tags=one.tags,
        data_source_id=one.data_source_id,
        access=Access(
            one.owner, one.group or settings.group, settings.mode if one.mode is None else one.mode
        ),
        quota_bytes=one.quota_bytes,
        max_leases=one.max_leases or settings.max_leases_per_stream,
        max_dims=one.max_dims,
        hugepages=one.hugepages,
    )


def _parsed(before: Layout, nslots: Any, pools: Any) -> Layout | Refusal:
    if nslots is not None:
        fault = nslots_fault(nslots) if type(nslots) is int else "use a whole number"
        if fault is not None:
            return Refusal(ResponseCode.INVALID_PARAMS, f"nslots {nslots!r}: {fault}")
        before = replace(before, nslots=nslots)
    if pools is None:
        return before
    sizes = [pools] if isinstance(pools, str | int) else pools
    if not isinstance(sizes, Sequence) or not all(type(one) in (str, int) for one in sizes):
        return Refusal(ResponseCode.INVALID_PARAMS, f"pools {pools!r}: use a list of sizes, as in ['1MiB']")
    try:
        return replace(before, strides=tuple(stride for _, stride in parse_pools(sizes)))
    except ConfigError as error:
        return Refusal(ResponseCode.INVALID_PARAMS, str(error))


def _name_fault(name: Any) -> str | None:
    if name is None or (isinstance(name, str) and name.isprintable() and len(name.encode()) <= _MAX_NAME):
        return None
    return f"name {name!r}: use up to {_MAX_NAME} bytes of visible characters"


def _tags_fault(tags: Any) -> str | None:
    if tags is None:
        return None
    if not isinstance(tags, list | tuple) or not all(isinstance(one, str) for one in tags):
        return f"tags {tags!r}: use a list of words"
    return tags_fault(tags)


def _source_fault(number: Any) -> str | None:
    if number is None or (type(number) is int and 0 <= number <= MAX_DATA_SOURCE_ID):
        return None
    return f"data_source_id {number!r}: use a whole number from 0 to {MAX_DATA_SOURCE_ID}"
