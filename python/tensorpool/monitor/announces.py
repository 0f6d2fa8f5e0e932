"""Which streams there are: whatever was announced lately (wire §10.2.1).

`StreamBook` is pure: announces and times in, streams out. `AnnounceEar` is its ear on a connection.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from .. import _native
from ..context import Context
from ..errors import CodecError, MediaDriverUnavailable
from ..sbe import ClockDomain, DataSourceAnnounce, PayloadPool, ShmPoolAnnounce, decode
from ..shm.inspect import region_path

_T = TypeVar("_T")
# A reader that sleeps must not stall those who announce.
_CHANNEL: Final = "aeron:ipc?tether=false"
_READY_TIMEOUT_S: Final = 10.0
_LOOK_S: Final = 0.01
# Whoever can reach the streams can make up names and numbers, and say them without end.
_MOST: Final = 20_000
_POLLS: Final = 256


@dataclass(frozen=True, slots=True)
class StreamHeard:
    """A stream as its last announce has it."""

    stream_id: int
    producer_id: int
    """0: nobody produces at the moment."""
    epoch: int
    layout_version: int
    nslots: int
    pools: tuple[PayloadPool, ...]
    header_uri: str
    announced_ns: int | None
    """When it was sent, on this machine's monotonic clock; None for other clocks."""
    heard_ns: int
    name: str = ""

    @property
    def has_producer(self) -> bool:
        return self.producer_id != 0

    @property
    def directory(self) -> Path | None:
        try:
            return region_path(self.header_uri)[0].parent
        except ValueError:
            return None

    @property
    def total_bytes(self) -> int:
        """What its regions take."""
        return 64 + 256 * self.nslots + sum(64 + pool.pool_nslots * pool.stride_bytes for pool in self.pools)

    def age_ns(self, now_ns: int) -> int:
        """How long ago it was announced, and no less than how long ago it was heard."""
        since = self.heard_ns if self.announced_ns is None else min(self.announced_ns, self.heard_ns)
        return now_ns - since

    def as_json(self, now_ns: int) -> dict[str, Any]:
        return {
            "stream_id": self.stream_id,
            "name": self.name or None,
            "producer_id": self.producer_id or None,
            "epoch": str(self.epoch),
            "layout_version": self.layout_version,
            "nslots": self.nslots,
            "pools": [
                {"pool_id": pool.pool_id, "stride_bytes": pool.stride_bytes, "region_uri": pool.region_uri}
                for pool in self.pools
            ],
            "bytes": self.total_bytes,
            "header_region_uri": self.header_uri,
            "directory": None if self.directory is None else str(self.directory),
            "announce_age_s": self.age_ns(now_ns) / 1e9,
        }


class StreamBook:
    """The newest announce of each stream; an announce that is older than `forget_after_ns` is forgotten."""

    def __init__(self, *, forget_after_ns: int) -> None:
        self._forget_after_ns = forget_after_ns
        self._streams: dict[int, StreamHeard] = {}
        self._names: dict[int, str] = {}
        self.malformed = 0

    def hear(self, message: bytes, now_ns: int) -> None:
        """One message of the announce or metadata stream; what is not for us is passed over."""
        try:
            found = decode(message)
        except CodecError:
            self.malformed += 1
            return
        match found:
            case ShmPoolAnnounce():
                self._announced(found, now_ns)
            case DataSourceAnnounce(stream_id=stream_id, name=name, meta_version=version) if name:
                # Version 0 is the driver's word: the producer's own comes before it.
                if version or stream_id not in self._names:
                    _remember(self._names, stream_id, name)
            case _:
                pass

    def _announced(self, found: ShmPoolAnnounce, now_ns: int) -> None:
        is_ours = found.announce_clock_domain is ClockDomain.MONOTONIC
        known = self._streams.get(found.stream_id)
        # A dying owner may speak once more after its successor did.
        if known is not None and found.epoch < known.epoch and known.age_ns(now_ns) < self._forget_after_ns:
            return
        heard = StreamHeard(
            stream_id=found.stream_id,
            producer_id=found.producer_id,
            epoch=found.epoch,
            layout_version=found.layout_version,
            nslots=found.header_nslots,
            pools=found.payload_pools,
            header_uri=found.header_region_uri,
            announced_ns=found.announce_timestamp_ns if is_ours else None,
            heard_ns=now_ns,
        )
        _remember(self._streams, found.stream_id, heard)

    def streams(self, now_ns: int) -> list[StreamHeard]:
        """What is announced at the moment, by id."""
        gone = [id_ for id_, one in self._streams.items() if one.age_ns(now_ns) > self._forget_after_ns]
        for stream_id in gone:
            del self._streams[stream_id]
        return [self._named(self._streams[stream_id]) for stream_id in sorted(self._streams)]

    def get(self, stream_id: int) -> StreamHeard | None:
        found = self._streams.get(stream_id)
        return None if found is None else self._named(found)

    def _named(self, one: StreamHeard) -> StreamHeard:
        name = self._names.get(one.stream_id, "")
        return replace(one, name=name) if name else one


def _remember(known: dict[int, _T], stream_id: int, what: _T) -> None:
    """In the order in which they were heard: of too many, the one that was longest not heard of goes."""
    known.pop(stream_id, None)
    known[stream_id] = what
    if len(known) > _MOST:
        del known[next(iter(known))]


class AnnounceEar:
    """Listens on the announce and metadata streams of a connection. Poll it now and then."""

    def __init__(self, context: Context) -> None:
        self.period_ns = context.connection.announce_period_ns
        self.book = StreamBook(forget_after_ns=3 * self.period_ns)
        ids = (context.stream_ids.announce, context.stream_ids.metadata)
        self._ears = [
            _native.Subscription(context.connection.conductor, _CHANNEL, stream)
            for stream in dict.fromkeys(ids)
        ]
        deadline = time.monotonic() + _READY_TIMEOUT_S
        while not all(ear.is_ready for ear in self._ears):
            if time.monotonic() > deadline:
                self.close()
                why = next((ear.failure for ear in self._ears if ear.failure), None) or "it did not answer"
                raise MediaDriverUnavailable(
                    f"the media driver in {context.aeron_dir} gave no announce stream: {why}",
                    aeron_dir=context.aeron_dir,
                )
            time.sleep(0.001)

    def poll(self) -> None:
        for ear in self._ears:
            for _ in range(_POLLS):
                messages = ear.poll(256)
                for message in messages:
                    self.book.hear(message, time.monotonic_ns())
                if not messages:
                    break

    def listen(self, seconds: float, *, until: Iterable[int] | None = None) -> list[StreamHeard]:
        """The streams announced within `seconds`; sooner if all of `until` were heard."""
        wanted = None if until is None else set(until)
        deadline = time.monotonic() + seconds
        while True:
            self.poll()
            found = self.book.streams(time.monotonic_ns())
            if wanted is not None and wanted <= {one.stream_id for one in found}:
                return found
            if time.monotonic() >= deadline:
                return found
            time.sleep(_LOOK_S)

    def close(self) -> None:
        for ear in self._ears:
            ear.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
