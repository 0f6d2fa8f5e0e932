"""Streams as a client finds them: checked, put together, and taken for hints (discovery §5.2, §7). Pure.

One question to all registries, and what comes back (discovery §5, §7, §10). Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ..attributes.tags import MAX_NAME_BYTES, fallback_uri_of, from_wire, needs_bridge, to_wire, wire_length
from ..errors import CodecError, ConfigError
from ..sbe import read_header
from ..sbe.discovery import DiscoveryRequest, DiscoveryResponse, DiscoveryResult, DiscoveryStatus, Tag
from .index import HEADER_SLOT_BYTES, MAX_DIMS
from .state import Filter


@dataclass(frozen=True, slots=True)
class DiscoveredStream:
    """A stream that somebody knows of: a snapshot, and no permission.

    `ctx.consumer(name=…)` goes all the way from here: it attaches through the stream's driver, the only one
    to say what the stream is and who may have it.
    """

    stream_id: int
    name: str
    tags: frozenset[str]
    data_source_id: int | None
    producer_id: int
    """0: nobody produces at the moment."""
    epoch: int
    layout_version: int
    nslots: int
    pools: tuple[int, ...]
    """Strides of the payload pools, in bytes."""
    driver_instance_id: str
    control_channel: str
    control_stream_id: int

    @property
    def has_producer(self) -> bool:
        return self.producer_id != 0

    @property
    def needs_bridge(self) -> bool:
        """Whether it is said of it that on other machines only a bridge reaches it."""
        return needs_bridge(self.tags)

    @property
    def fallback_uri(self) -> str | None:
        """Where its frames can be read off a bridge, if a tag `reach:bridge://…` says so."""
        return fallback_uri_of(self.tags)

    @property
    def key(self) -> tuple[str, int]:
        return self.driver_instance_id, self.stream_id

    def __str__(self) -> str:
        called = f" {self.name!r}" if self.name else ""
        return f"stream {self.stream_id}{called} of driver {self.driver_instance_id!r}"

    def as_json(self) -> dict[str, Any]:
        """As JSON holds it: 64-bit numbers are text."""
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
    return DiscoveredStream(
        stream_id=result.stream_id,
        name=from_wire(result.data_source_name),
        tags=frozenset(from_wire(one.tag) for one in result.tags if one.tag),
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


def merge_results(answers: Iterable[Iterable[DiscoveredStream]]) -> list[DiscoveredStream]:
    """What several registries say: each stream once, in its newest epoch (discovery §7)."""
    newest: dict[tuple[str, int], DiscoveredStream] = {}
    for answer in answers:
        for one in answer:
            known = newest.get(one.key)
            # Of the same epoch, the one with a name: a registry that has just started knows less.
            if known is None or (one.epoch, bool(one.name)) > (known.epoch, bool(known.name)):
                newest[one.key] = one
    return [newest[key] for key in sorted(newest)]


_MAX_U32: Final = 0xFFFF_FFFE
_MAX_U64: Final = (1 << 64) - 2


def make_filter(
    *,
    name: str | None = None,
    tags: Sequence[str] = (),
    stream_id: int | None = None,
    producer_id: int | None = None,
    data_source_id: int | None = None,
) -> Filter:
    """What people look for, checked. Raises ConfigError."""
    if isinstance(tags, str):
        tags = (tags,)
    for what, number, most in (
        ("stream_id", stream_id, _MAX_U32),
        ("producer_id", producer_id, _MAX_U32),
        ("data_source_id", data_source_id, _MAX_U64),
    ):
        if number is not None and (type(number) is not int or not 0 <= number <= most):
            raise ConfigError(f"{what} {number!r}: use a whole number from 0 to {most}")
    try:
        wire_name, wire_tags = to_wire(name or ""), frozenset(to_wire(one) for one in tags)
    except UnicodeEncodeError as error:
        raise ConfigError(f"{error.object!r} has no bytes: use text") from None
    if name is not None and not 0 < wire_length(wire_name) <= MAX_NAME_BYTES:
        raise ConfigError(f"name {name!r}: a name has 1 to {MAX_NAME_BYTES} bytes")
    if "" in wire_tags:
        raise ConfigError(f"tags {list(tags)!r}: no tag is empty")
    return Filter(stream_id, producer_id, data_source_id, wire_name, wire_tags)


def make_request(
    wanted: Filter, *, request_id: int, client_id: int, response_channel: str, response_stream_id: int
) -> DiscoveryRequest:
    """Raises ConfigError rather than ask without saying where the answer is to go."""
    if not response_channel or not 0 < response_stream_id < 1 << 31:
        raise ConfigError("a question names a response channel, and a stream that is not 0")
    return DiscoveryRequest(
        request_id=request_id,
        client_id=client_id,
        response_stream_id=response_stream_id,
        stream_id=wanted.stream_id,
        producer_id=wanted.producer_id,
        data_source_id=wanted.data_source_id,
        tags=tuple(Tag(tag=tag) for tag in sorted(wanted.tags)),
        response_channel=response_channel,
        data_source_name=wanted.name,
    )


@dataclass(slots=True)
class PendingQuery:
    """The answers to one question, each registry asked under an id of its own."""

    wanted: Filter
    request_ids: Sequence[int]
    answers: dict[int, list[DiscoveredStream]] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    dropped: Counter[str] = field(default_factory=Counter)
    """Messages and results that were passed over, by reason."""

    @property
    def open_ids(self) -> list[int]:
        """Those that nobody has answered yet."""
        return [one for one in self.request_ids if one not in self.answers and one not in self.errors]

    @property
    def is_answered(self) -> bool:
        return bool(self.answers)

    @property
    def is_over(self) -> bool:
        return not self.open_ids

    def hear(self, message: bytes) -> None:
        """A message of the response stream, whoever it is for. Never raises."""
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
            self.answers[response.request_id] = []
            return
        self.answers[response.request_id] = self._results(response)

    def _read(self, message: bytes) -> DiscoveryResponse | None:
        """By schema id, template and version of the message header, and by nothing else (discovery §10)."""
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

    def _results(self, response: DiscoveryResponse) -> list[DiscoveredStream]:
        found = []
        for result in response.results:
            one = read_result(result)
            if isinstance(one, str):
                self.dropped[one] += 1
            elif not self._fits(one):
                self.dropped["filter"] += 1
            else:
                found.append(one)
        return found

    def _fits(self, one: DiscoveredStream) -> bool:
        """Names byte for byte, and everything else too: a registry may be of another opinion."""
        wanted = self.wanted
        return (
            wanted.stream_id in (None, one.stream_id)
            and wanted.producer_id in (None, one.producer_id)
            and wanted.data_source_id in (None, one.data_source_id)
            and wanted.name in ("", to_wire(one.name))
            and {from_wire(tag) for tag in wanted.tags} <= one.tags
        )

    def streams(self) -> list[DiscoveredStream]:
        return merge_results(self.answers.values())
