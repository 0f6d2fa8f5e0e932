"""The client's side of a discovery request: its filter, and the streams of its responses. Pure.

Discovery §5, §7, §10. `client` sends the request; `requests` and `responses` are the side that answers it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from ..attributes.tags import (
    MAX_NAME_BYTES,
    REACH_LOCAL,
    fallback_uri_of,
    from_wire,
    needs_bridge,
    to_wire,
    wire_length,
)
from ..errors import CodecError, ConfigError
from ..sbe import read_header
from ..sbe.discovery import DiscoveryRequest, DiscoveryResponse, DiscoveryResult, DiscoveryStatus, Tag
from ..shm.epoch_files import HEADER_SLOT_BYTES
from ..text import JsonMapping, html_table
from ..units import MAX_STREAM_ID, MAX_U32, MAX_U64

MAX_DIMS: Final = 8


@dataclass(frozen=True, slots=True)
class Filter:
    """The conditions of a request; a stream must meet all of them (discovery §5.1). Text: wire form."""

    stream_id: int | None = None
    producer_id: int | None = None
    data_source_id: int | None = None
    name: str = ""
    tags: frozenset[str] = frozenset()

    @classmethod
    def from_request(cls, request: DiscoveryRequest) -> Filter:
        """The filter of a request. A repeated tag counts once, and an empty one not at all."""
        return cls(
            request.stream_id,
            request.producer_id,
            request.data_source_id,
            request.data_source_name,
            frozenset(item.tag for item in request.tags if item.tag),
        )

    @property
    def kinds(self) -> str:
        """The names of the conditions, without their values: for logs."""
        given = [
            ("stream", self.stream_id is not None),
            ("producer", self.producer_id is not None),
            ("source", self.data_source_id is not None),
            ("name", bool(self.name)),
            (f"{len(self.tags)} tags", bool(self.tags)),
        ]
        return ", ".join(kind for kind, is_given in given if is_given) or "nothing"


@dataclass(frozen=True, slots=True)
class DiscoveredStream:
    """A stream as a provider knows it: a snapshot, and no permission.

    `ctx.consumer(name=…)` does all the rest: it attaches through the stream's driver, which decides about the
    layout and the lease.
    """

    stream_id: int
    """Its id."""
    name: str
    """Its name; empty if it has none."""
    tags: frozenset[str]
    """Its tags."""
    data_source_id: int | None
    """The number of its source; None if the producer gives none."""
    producer_id: int
    """0: the stream has no producer at the moment."""
    epoch: int
    """The epoch of its memory; 0 if it has none."""
    layout_version: int
    """Version of the memory layout."""
    nslots: int
    """Slots of its ring."""
    pools: tuple[int, ...]
    """Strides of the payload pools, in bytes."""
    driver_instance_id: str
    """The driver that owns its memory."""
    control_channel: str
    """The Aeron channel of that driver's control stream."""
    control_stream_id: int
    """The Aeron stream of that driver's control stream."""
    supports_local_attach: bool = False
    """Whether the provider says that clients on its own media driver can attach to it."""

    @property
    def has_producer(self) -> bool:
        """Whether the stream has a producer."""
        return self.producer_id != 0

    @property
    def needs_bridge(self) -> bool:
        """Whether a tag says that other hosts reach it through a bridge only."""
        return needs_bridge(self.tags)

    @property
    def fallback_uri(self) -> str | None:
        """Where a bridge publishes its frames, if a tag `reach:bridge://…` says so."""
        return fallback_uri_of(self.tags)

    @property
    def key(self) -> tuple[str, int]:
        """Driver instance and stream id."""
        return self.driver_instance_id, self.stream_id

    def __str__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        return f"stream {self.stream_id}{name} of driver {self.driver_instance_id!r}"

    def _repr_html_(self) -> str:
        pools = ", ".join(f"{self.nslots} of {stride:,} bytes" for stride in self.pools)
        rows = {
            "stream": self.stream_id,
            "name": self.name or "none",
            "tags": " ".join(sorted(self.tags)) or "none",
        }
        rows |= {"driver": self.driver_instance_id, "epoch": self.epoch, "pools": pools}
        return html_table({**rows, "producer": self.producer_id or "none at the moment"})

    def to_json(self) -> JsonMapping:
        """The stream as JSON values; 64-bit numbers are text."""
        return {
            "driver": self.driver_instance_id,
            "stream_id": self.stream_id,
            "name": self.name or None,
            "tags": sorted(self.tags),
            "data_source_id": None if self.data_source_id is None else str(self.data_source_id),
            "producer_id": self.producer_id or None,
            "epoch": str(self.epoch),
            "layout_version": self.layout_version,
            "nslots": self.nslots,
            "pools": list(self.pools),
            "control_channel": self.control_channel,
            "control_stream_id": self.control_stream_id,
        }


def read_result(result: DiscoveryResult) -> DiscoveredStream | str:
    """The stream, or why the result is invalid (discovery §5.2)."""
    if not result.driver_control_channel:
        return "no_control_channel"
    if result.driver_control_stream_id == 0:
        return "no_control_stream"
    if any(pool.pool_nslots != result.header_nslots for pool in result.payload_pools):
        return "slot_count"
    if result.header_slot_bytes != HEADER_SLOT_BYTES or result.max_dims != MAX_DIMS:
        return "layout"
    tags = frozenset(from_wire(item.tag) for item in result.tags if item.tag)
    return DiscoveredStream(
        stream_id=result.stream_id,
        name=from_wire(result.data_source_name),
        # The provider has added it to the tags of the stream.
        tags=tags - {REACH_LOCAL},
        supports_local_attach=REACH_LOCAL in tags,
        data_source_id=result.data_source_id,
        producer_id=result.producer_id,
        epoch=result.epoch,
        layout_version=result.layout_version,
        nslots=result.header_nslots,
        pools=tuple(pool.stride_bytes for pool in result.payload_pools),
        driver_instance_id=result.driver_instance_id,
        control_channel=result.driver_control_channel,
        control_stream_id=result.driver_control_stream_id,
    )


def merge_results(responses: Iterable[Iterable[DiscoveredStream]]) -> list[DiscoveredStream]:
    """The results of several registries: each stream once, in its newest epoch (discovery §7)."""
    newest: dict[tuple[str, int], DiscoveredStream] = {}
    for streams in responses:
        for stream in streams:
            known = newest.get(stream.key)
            # Of equal epochs the result with a name wins: a registry that has just started has no names yet.
            if known is None or (stream.epoch, bool(stream.name)) > (known.epoch, bool(known.name)):
                newest[stream.key] = stream
    return [newest[key] for key in sorted(newest)]


def make_filter(
    *,
    name: str | None = None,
    tags: Sequence[str] = (),
    stream_id: int | None = None,
    producer_id: int | None = None,
    data_source_id: int | None = None,
) -> Filter:
    """A filter from a caller's arguments. Raises ConfigError."""
    if isinstance(tags, str):
        tags = (tags,)
    for argument, number, maximum in (
        ("stream_id", stream_id, MAX_STREAM_ID),
        ("producer_id", producer_id, MAX_U32),
        ("data_source_id", data_source_id, MAX_U64),
    ):
        if number is not None and (type(number) is not int or not 0 <= number <= maximum):
            raise ConfigError(f"{argument} {number!r}: use a whole number from 0 to {maximum}")
    try:
        wire_name, wire_tags = to_wire(name or ""), frozenset(to_wire(tag) for tag in tags)
    except UnicodeEncodeError as error:
        raise ConfigError(f"{error.object!r} cannot be encoded as UTF-8: use text") from None
    if name is not None and not 0 < wire_length(wire_name) <= MAX_NAME_BYTES:
        raise ConfigError(f"name {name!r}: a name has 1 to {MAX_NAME_BYTES} bytes")
    if "" in wire_tags:
        raise ConfigError(f"tags {list(tags)!r}: no tag is empty")
    return Filter(stream_id, producer_id, data_source_id, wire_name, wire_tags)


def make_request(
    query: Filter, *, request_id: int, client_id: int, response_channel: str, response_stream_id: int
) -> DiscoveryRequest:
    """The request of a filter. Raises ConfigError if it has no address for the response."""
    if not response_channel or not 0 < response_stream_id < 1 << 31:
        raise ConfigError("a request needs a response channel, and a response stream that is not 0")
    return DiscoveryRequest(
        request_id=request_id,
        client_id=client_id,
        response_stream_id=response_stream_id,
        stream_id=query.stream_id,
        producer_id=query.producer_id,
        data_source_id=query.data_source_id,
        tags=tuple(Tag(tag=tag) for tag in sorted(query.tags)),
        response_channel=response_channel,
        data_source_name=query.name,
    )


@dataclass(slots=True)
class PendingQuery:
    """The responses to one query. Each registry gets a request with its own id."""

    query: Filter
    request_ids: Sequence[int]
    results: dict[int, list[DiscoveredStream]] = field(default_factory=dict)
    """Streams by request id, of all responses that are no errors."""
    errors: dict[int, str] = field(default_factory=dict)
    dropped: Counter[str] = field(default_factory=Counter)
    """Ignored messages and results, by reason."""

    @property
    def open_ids(self) -> list[int]:
        """Requests without a response."""
        return [
            request_id
            for request_id in self.request_ids
            if request_id not in self.results and request_id not in self.errors
        ]

    @property
    def is_answered(self) -> bool:
        """Whether a response without an error was received."""
        return bool(self.results)

    @property
    def is_complete(self) -> bool:
        """Whether all requests have a response."""
        return not self.open_ids

    def on_response(self, message: bytes) -> None:
        """Takes a message of the response stream, which other clients may share. Never raises."""
        response = self._read(message)
        if response is None:
            return
        if response.request_id not in self.open_ids:
            self.dropped["request_id"] += 1
            return
        if response.status is DiscoveryStatus.ERROR:
            self._drop_results(response)
            self.errors[response.request_id] = response.error_message
            return
        if response.status is DiscoveryStatus.NOT_FOUND:
            self._drop_results(response)
            self.results[response.request_id] = []
            return
        self.results[response.request_id] = self._read_results(response)

    def _read(self, message: bytes) -> DiscoveryResponse | None:
        """Decides by schema id, template id and version of the message header only (discovery §10)."""
        layout = DiscoveryResponse.layout()
        try:
            header = read_header(message)
            if (header.schema_id, header.template_id) != (layout.schema_id, layout.template_id):
                self.dropped["schema"] += 1
                return None
            if header.version != layout.version:
                self.dropped["version"] += 1
                return None
            return DiscoveryResponse.decode(message)
        except CodecError:
            self.dropped["malformed"] += 1
            return None

    def _drop_results(self, response: DiscoveryResponse) -> None:
        self.dropped["with_no_result"] += len(response.results)

    def _read_results(self, response: DiscoveryResponse) -> list[DiscoveredStream]:
        streams = []
        for result in response.results:
            stream = read_result(result)
            if isinstance(stream, str):
                self.dropped[stream] += 1
            elif not self._matches(stream):
                self.dropped["filter"] += 1
            else:
                streams.append(stream)
        return streams

    def _matches(self, stream: DiscoveredStream) -> bool:
        """Checks the filter once more, names by their bytes: a registry may apply other rules."""
        query = self.query
        return (
            query.stream_id in (None, stream.stream_id)
            and query.producer_id in (None, stream.producer_id)
            and query.data_source_id in (None, stream.data_source_id)
            and query.name in ("", to_wire(stream.name))
            and {from_wire(tag) for tag in query.tags} - {REACH_LOCAL} <= stream.tags
        )

    def streams(self) -> list[DiscoveredStream]:
        """The streams of all responses."""
        return merge_results(self.results.values())
