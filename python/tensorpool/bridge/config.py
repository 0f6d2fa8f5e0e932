"""The bridge's settings: tables `[bridge]` and `[[bridge.mappings]]` (bridge §10).

Settings have the names of the specification where it names them. `faults` checks how they fit together.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

from ..driver.config import DEFAULT_BRIDGE_IDS, nslots_fault, pools_fault
from ..runtime.config import (
    DurationNs,
    IdRange,
    SizeBytes,
    parse_duration,
    parse_size,
    setting,
    settings,
    table,
)
from ..units import MAX_STREAM_ID

Direction = Literal["send", "receive"]
Idle = Literal["backoff", "busy-spin", "yield", "sleep"]

MAX_CHUNK_BYTES: Final = 65_535
MAX_PAYLOAD_BYTES: Final = 1 << 30
_MIN_MTU: Final = 576
_MAX_MTU: Final = 65_504
_MAX_AERON_STREAM: Final = (1 << 31) - 1

SOURCE_PROFILE: Final = "source"
DRIVER_PROFILE: Final = "driver"
BUILTIN_PROFILES: Final = (SOURCE_PROFILE, DRIVER_PROFILE)


def _udp_fault(channel: str) -> str | None:
    if not channel:
        return None
    kind, _, rest = channel.partition("?")
    names = {part.split("=")[0] for part in rest.split("|")}
    if kind != "aeron:udp":
        return "use an Aeron UDP channel, as in 'aeron:udp?endpoint=10.0.0.2:40100'"
    return None if names & {"endpoint", "control"} else "has neither endpoint= nor control="


def _mtu_fault(mtu: int) -> str | None:
    return None if mtu % 32 == 0 else f"use a multiple of 32, as in {mtu // 32 * 32}"


def _aeron_stream(doc: str, default: int | None, *, minimum: int = 1) -> int:
    number: int = setting(doc, default=default, minimum=minimum, maximum=_MAX_AERON_STREAM)
    return number


@table
class ProfileSettings:
    """A layout for destinations."""

    name: str = setting("Name that mappings use.")
    nslots: int = setting(
        "Slots of the header ring: frames that a consumer may lag behind.", default=8, check=nslots_fault
    )
    pools: tuple[SizeBytes, ...] = setting("Strides of the payload pools.", check=pools_fault)


@table
class MappingSettings:
    """One stream that crosses the bridge."""

    source_stream_id: int = setting("Stream that the sender reads.", minimum=1, maximum=MAX_STREAM_ID)
    dest_stream_id: int = setting(
        "Stream that the receiver publishes. 0: a free id of `dest_stream_id_range`.",
        default=0,
        minimum=0,
        maximum=MAX_STREAM_ID,
    )
    direction: Direction | None = setting(
        "Whether this instance sends or receives the stream. None: as `bridge.direction`.", default=None
    )
    profile: str = setting(
        "Slots and pools of the destination: `source` for the layout that the source announces, `driver` for "
        "the configuration of the receiver's driver, or the name of one of the `profiles`.",
        default=SOURCE_PROFILE,
    )
    metadata_stream_id: int = setting(
        "Stream id of forwarded metadata. 0: that of the destination.",
        default=0,
        minimum=0,
        maximum=MAX_STREAM_ID,
    )
    source_control_stream_id: int = _aeron_stream(
        "Aeron stream of progress and QoS at the source. 0: none.", 0, minimum=0
    )
    dest_control_stream_id: int = _aeron_stream(
        "Aeron stream of forwarded progress and QoS at the destination. 0: none.", 0, minimum=0
    )
    descriptor_stream_id: int | None = setting(
        "Aeron stream of its descriptors on this host. None: the shared descriptor stream.",
        default=None,
        minimum=1,
        maximum=_MAX_AERON_STREAM,
    )
    payload_channel: str | None = setting(
        "Replaces `bridge.payload_channel`.", default=None, check=_udp_fault
    )
    payload_stream_id: int | None = _aeron_stream("Replaces `bridge.payload_stream_id`.", None)
    control_channel: str | None = setting(
        "Replaces `bridge.control_channel`.", default=None, check=_udp_fault
    )
    control_stream_id: int | None = _aeron_stream("Replaces `bridge.control_stream_id`.", None)
    metadata_channel: str | None = setting(
        "Replaces `bridge.metadata_channel`.", default=None, check=_udp_fault
    )
    # In the specification a mapping's metadata_stream_id is a stream id, not an Aeron stream id.
    metadata_transport_stream_id: int | None = _aeron_stream("Replaces `bridge.metadata_stream_id`.", None)


@settings("bridge")
class BridgeSettings:
    """The bridge: publishes streams of one host on another, over Aeron UDP."""

    instance_id: str = setting("Name of this instance in logs, counters and `service:bridge:<instance_id>`.")
    direction: Direction = setting(
        "Direction of mappings that set none, so that both hosts can use one file.",
        default="send",
        flag="--direction",
    )
    payload_channel: str = setting("UDP channel of frames.", check=_udp_fault)
    payload_stream_id: int = _aeron_stream("Aeron stream id of frames.", 3000)
    control_channel: str = setting(
        "UDP channel of announces, and of forwarded QoS and progress.", check=_udp_fault
    )
    control_stream_id: int = _aeron_stream("Aeron stream id of announces, QoS and progress.", 3001)
    mappings: tuple[MappingSettings, ...] = setting("Streams that cross the bridge.")
    mtu_bytes: int | None = setting(
        "MTU that chunks are sized for. None: that of the channel.",
        default=None,
        minimum=_MIN_MTU,
        maximum=_MAX_MTU,
        check=_mtu_fault,
    )
    chunk_bytes: int | None = setting(
        "Payload bytes of a chunk, at most the MTU less 128. None: the maximum.",
        default=None,
        minimum=1,
        maximum=MAX_CHUNK_BYTES,
    )
    max_chunk_bytes: int = setting(
        "Longer chunks are rejected.", default=MAX_CHUNK_BYTES, minimum=1, maximum=MAX_CHUNK_BYTES
    )
    max_payload_bytes: int = setting(
        "Longer payloads are rejected.", default=MAX_PAYLOAD_BYTES, minimum=0, maximum=MAX_PAYLOAD_BYTES
    )
    dest_stream_id_range: IdRange | None = setting(
        "Stream ids for mappings with `dest_stream_id = 0`; other uses of these ids are refused at the "
        f"start. None: {DEFAULT_BRIDGE_IDS}, less the ids that mappings name.",
        default=None,
    )
    forward_metadata: bool = setting("Forward metadata.", default=True)
    metadata_channel: str = setting("UDP channel of metadata.", default="", check=_udp_fault)
    metadata_stream_id: int = _aeron_stream("Aeron stream id of metadata.", 3002)
    source_metadata_stream_id: int | None = _aeron_stream(
        "Aeron stream of metadata at the source. None: the shared metadata stream.", None
    )
    forward_qos: bool = setting("Forward QoS reports.", default=False)
    forward_progress: bool = setting("Forward FrameProgress.", default=False)
    assembly_timeout_ms: int = setting(
        "Milliseconds that a receiver waits for all chunks of a frame.",
        default=250,
        minimum=1,
        maximum=60_000,
    )
    forward_traces: bool = setting(
        "Forward trace ids and TraceLinkSets. Chunks of frames with a trace id are then in the later form, "
        "which has a checksum too. False: for a receiver that knows the first form only.",
        default=True,
    )
    integrity: bool = setting(
        "Chunks carry a checksum; a receiver rejects chunks without one. False: for a peer that knows the "
        "first revision of chunks only; corrupted bytes are then delivered.",
        default=True,
    )
    key_file: Path | None = setting(
        "File with the keys that both ends share, as `tensorpool bridge keygen` makes it. All messages are "
        "sealed with the first key, and a receiver rejects all others. None: nothing is sealed.",
        default=None,
    )
    key_max_age_ns: DurationNs = setting(
        "How much the time at which a message was sealed may differ from the clock of the receiver. Older "
        "messages may be recorded ones that are sent again.",
        default=parse_duration("60s"),
        minimum=parse_duration("100ms"),
    )
    profiles: tuple[ProfileSettings, ...] = setting("Layouts for destinations.", default=())
    max_destination_bytes: SizeBytes = setting(
        "Maximum memory of a destination whose layout the source announces.",
        default=parse_size("4GiB"),
    )
    idle: Idle = setting(
        "Idle strategy of the threads that move frames; busy-spin and yield use a core each.",
        default="backoff",
    )

    def check(self) -> Iterator[tuple[str, str]]:
        """Faults of settings that are valid by themselves, as (setting, fault)."""
        from .faults import settings_faults

        yield from settings_faults(self)
