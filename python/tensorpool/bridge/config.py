"""What a bridge can be told by file and environment: `[bridge]` and `[[bridge.mappings]]` (bridge §10).

Keys that the specification names have its names. Checks that need other tables are in `checks.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

from ..driver.config import MAX_STREAM_ID, nslots_fault, pools_fault
from ..runtime.config import IdRange, SizeBytes, parse_size, setting, settings, table

Direction = Literal["send", "receive"]
Idle = Literal["backoff", "busy-spin", "yield", "sleep"]

MAX_CHUNK_BYTES: Final = 65_535
MAX_PAYLOAD_BYTES: Final = 1 << 30
_MIN_MTU, _MAX_MTU = 576, 65_504
_MAX_AERON_STREAM = (1 << 31) - 1

AS_SOURCE: Final = "source"
AS_DRIVER: Final = "driver"
OWN_PROFILES: Final = (AS_SOURCE, AS_DRIVER)


def _udp_fault(channel: str) -> str | None:
    if not channel:
        return None
    kind, _, rest = channel.partition("?")
    names = {part.split("=")[0] for part in rest.split("|")}
    if kind != "aeron:udp":
        return "use an Aeron UDP channel, as in 'aeron:udp?endpoint=10.0.0.2:40100'"
    return None if names & {"endpoint", "control"} else "names no endpoint= and no control="


def _mtu_fault(mtu: int) -> str | None:
    return None if mtu % 32 == 0 else f"use a multiple of 32, as in {mtu // 32 * 32}"


def _aeron_stream(doc: str, default: int | None, *, minimum: int = 1) -> int:
    number: int = setting(doc, default=default, minimum=minimum, maximum=_MAX_AERON_STREAM)
    return number


@table
class ProfileSettings:
    """A layout that destinations can have."""

    name: str = setting("What mappings call it.")
    nslots: int = setting("How many frames a reader may lag behind.", default=8, check=nslots_fault)
    pools: tuple[SizeBytes, ...] = setting("Size classes of payloads.", check=pools_fault)


@table
class MappingSettings:
    """One stream that crosses: from one host's shared memory into another's."""

    source_stream_id: int = setting(
        "The stream that is read at its source.", minimum=1, maximum=MAX_STREAM_ID
    )
    dest_stream_id: int = setting(
        "The stream that is made of it. 0: one of `dest_stream_id_range`.",
        default=0,
        minimum=0,
        maximum=MAX_STREAM_ID,
    )
    direction: Direction | None = setting(
        "Whether this instance sends or receives it. None: as `bridge.direction` says.", default=None
    )
    profile: str = setting(
        "Slots and pools of the destination: `source` for those that the source announces, `driver` for what "
        "the driver there has configured, or the name of one of the `profiles`.",
        default=AS_SOURCE,
    )
    metadata_stream_id: int = setting(
        "The stream id that forwarded metadata carries. 0: that of the destination.",
        default=0,
        minimum=0,
        maximum=MAX_STREAM_ID,
    )
    source_control_stream_id: int = _aeron_stream(
        "Where progress and QoS are heard at the source. 0: nowhere.", 0, minimum=0
    )
    dest_control_stream_id: int = _aeron_stream(
        "Where they are said again at the destination. 0: nowhere.", 0, minimum=0
    )
    descriptor_stream_id: int | None = setting(
        "Where its descriptors are read or published on this host. None: the usual stream.",
        default=None,
        minimum=1,
        maximum=_MAX_AERON_STREAM,
    )
    payload_channel: str | None = setting("Instead of the bridge's.", default=None, check=_udp_fault)
    payload_stream_id: int | None = _aeron_stream("Instead of the bridge's.", None)
    control_channel: str | None = setting("Instead of the bridge's.", default=None, check=_udp_fault)
    control_stream_id: int | None = _aeron_stream("Instead of the bridge's.", None)
    metadata_channel: str | None = setting("Instead of the bridge's.", default=None, check=_udp_fault)
    # The spec's per-mapping metadata_stream_id is an id of a stream, not of an Aeron stream.
    metadata_transport_stream_id: int | None = _aeron_stream(
        "Instead of the bridge's `metadata_stream_id`.", None
    )


@settings("bridge")
class BridgeSettings:
    """Carries streams between hosts over Aeron UDP."""

    instance_id: str = setting("Tells this bridge from others, in logs and counters.")
    direction: Direction = setting(
        "What this instance does with mappings that do not say: one file can serve both hosts.",
        default="send",
        flag="--direction",
    )
    payload_channel: str = setting("The UDP channel of frames.", check=_udp_fault)
    payload_stream_id: int = _aeron_stream("Their stream id there.", 3000)
    control_channel: str = setting(
        "The UDP channel of announces, and of QoS and progress where they are forwarded.", check=_udp_fault
    )
    control_stream_id: int = _aeron_stream("Their stream id there.", 3001)
    mappings: tuple[MappingSettings, ...] = setting("What crosses.")
    mtu_bytes: int | None = setting(
        "The MTU that frames are cut for. None: that of the channel.",
        default=None,
        minimum=_MIN_MTU,
        maximum=_MAX_MTU,
        check=_mtu_fault,
    )
    chunk_bytes: int | None = setting(
        "Payload bytes of a chunk, never more than the MTU less 128. None: as many.",
        default=None,
        minimum=1,
        maximum=MAX_CHUNK_BYTES,
    )
    max_chunk_bytes: int = setting(
        "Longer chunks are refused.", default=MAX_CHUNK_BYTES, minimum=1, maximum=MAX_CHUNK_BYTES
    )
    max_payload_bytes: int = setting(
        "Longer payloads are refused.", default=MAX_PAYLOAD_BYTES, minimum=0, maximum=MAX_PAYLOAD_BYTES
    )
    dest_stream_id_range: IdRange | None = setting(
        "Ids for destinations that are given as 0. None: there are no such destinations.", default=None
    )
    forward_metadata: bool = setting("Whether metadata crosses too.", default=True)
    metadata_channel: str = setting("The UDP channel of metadata.", default="", check=_udp_fault)
    metadata_stream_id: int = _aeron_stream("Its stream id there.", 3002)
    source_metadata_stream_id: int | None = _aeron_stream(
        "Where metadata is heard at the source. None: the usual stream.", None
    )
    forward_qos: bool = setting("Whether QoS messages cross too.", default=False)
    forward_progress: bool = setting(
        "Whether words about frames that are still filling cross too.", default=False
    )
    assembly_timeout_ms: int = setting(
        "How many milliseconds a receiver waits for all chunks of a frame.",
        default=250,
        minimum=1,
        maximum=60_000,
    )
    integrity: bool = setting(
        "Chunks carry a trace id and a checksum, and a receiver takes no others. Both ends have to agree.",
        default=False,
    )
    profiles: tuple[ProfileSettings, ...] = setting("Layouts for destinations.", default=())
    max_destination_bytes: SizeBytes = setting(
        "Most memory that a source's announce can have made for one destination.",
        default=parse_size("4GiB"),
    )
    idle: Idle = setting(
        "How the threads that move frames wait: shorter waits cost a core.", default="backoff"
    )

    def check(self) -> Iterator[tuple[str, str]]:
        from .mappings import settings_faults

        yield from settings_faults(self)
