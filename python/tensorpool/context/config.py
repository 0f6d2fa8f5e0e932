"""What a connection can be told by file and environment: `[aeron]` and `[shm]`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from ..runtime.config import DurationNs, FileMode, SizeBytes, parse_duration, setting, settings
from ..transport.channels import DEFAULT_DESCRIPTOR_TERM_BYTES, term_fault

_MAX_STREAM_ID = (1 << 31) - 1


def _stream(doc: str, default: int) -> int:
    number: int = setting(doc, default=default, minimum=1, maximum=_MAX_STREAM_ID)
    return number


@settings("aeron")
class AeronSettings:
    """The media driver, and the streams that words about tensors travel on."""

    dir: Path | None = setting(
        "The media driver's directory. Without one: `$AERON_DIR`, else Aeron's default.",
        default=None,
        flag="--aeron-dir",
    )
    media_driver: Literal["auto", "external"] = setting(
        "`auto` embeds a media driver if none runs there, `external` only ever attaches.", default="auto"
    )
    dir_mode: FileMode = setting(
        "Permission bits of its directory, where it is embedded. For a group: 0770, with a umask of 007, "
        "since Aeron makes its files by the umask.",
        default=0o700,
    )
    connect_timeout_ns: DurationNs = setting(
        "How long to wait for it at the start.", default=parse_duration("10s"), minimum=1
    )
    driver_timeout_ns: DurationNs = setting(
        "How long it may be silent before it counts as dead.",
        default=parse_duration("5s"),
        minimum=parse_duration("100ms"),
    )
    announce_period_ns: DurationNs = setting(
        "How often regions are announced; three times that is the freshness window.",
        default=parse_duration("1s"),
        minimum=parse_duration("10ms"),
    )
    control_stream_id: int = _stream("Requests to a driver, and its answers.", 1000)
    announce_stream_id: int = _stream("Announces of regions.", 1001)
    descriptor_stream_id: int = _stream("Descriptors of frames.", 1100)
    qos_stream_id: int = _stream("Quality of service.", 1200)
    metadata_stream_id: int = _stream("Metadata of sources.", 1300)
    descriptor_term_bytes: SizeBytes = setting(
        "Term length of a producer's descriptors; each has three terms of shared memory. "
        "`tensorpool doctor sizing` says what a stream needs.",
        default=DEFAULT_DESCRIPTOR_TERM_BYTES,
        check=term_fault,
    )


@settings("context")
class ContextSettings:
    """How a program comes to its memory."""

    mode: Literal["auto", "driver", "embedded", "standalone"] = setting(
        "`auto` attaches to a running driver, else embeds one; `driver` only attaches; `embedded` has its "
        "own; `standalone` does without: each producer owns its memory.",
        default="auto",
    )
    keepalive_ns: DurationNs = setting(
        "How often a lease is kept alive. A driver that gives shorter leases is told as often as it needs.",
        default=parse_duration("1s"),
        minimum=parse_duration("10ms"),
    )
    attach_timeout_ns: DurationNs = setting(
        "How long to wait for a driver's answer.",
        default=parse_duration("5s"),
        minimum=parse_duration("10ms"),
    )
    attach_retry_ns: DurationNs = setting(
        "The usual pause between two attempts; each differs from it by up to half.",
        default=parse_duration("1s"),
        minimum=parse_duration("10ms"),
    )
    attach_revision: int = setting(
        "Which form of the attach messages the driver speaks: 1, or 2 for the later one.",
        default=1,
        minimum=1,
        maximum=2,
    )
    hello_period_ns: DurationNs = setting(
        "How often a consumer says hello, and both sides report on the QoS stream. A consumer that is silent "
        "for five times that has left.",
        default=parse_duration("1s"),
        minimum=parse_duration("10ms"),
    )
    tell_latency: bool = setting(
        "The status reports of consumers include their latency: of the last hello period, and in total.",
        default=True,
    )
    tell_accounts: bool = setting(
        "Producers and consumers publish a status report on the services' status stream, once a hello period "
        "and when they close: key `status` of `service:producer:<stream>` and `service:consumer:<stream>`. "
        "Supervisor and ledger read them.",
        default=True,
    )
    aeron_counters: bool = setting(
        "A few numbers of producers and consumers stand among the media driver's counters: of up to 64 in a "
        "program.",
        default=True,
    )
    progress_interval_ns: DurationNs = setting(
        "A producer tells of a frame that is still filling no more often than this, whatever its consumers "
        "ask for. If they ask for nothing, it is every 250us.",
        default=parse_duration("100us"),
        maximum=parse_duration("1h"),
    )
    progress_step_bytes: SizeBytes = setting(
        "And for no fewer bytes than this. If they ask for nothing, it is every 64KiB.",
        default=4096,
        maximum=_MAX_STREAM_ID,
    )
    own_channels: tuple[str, ...] = setting(
        "Channels on which a producer grants consumers streams of their own.", default=("aeron:ipc",)
    )
    own_descriptor_first: int = _stream("The first stream id for a consumer's own descriptors.", 31_000)
    own_descriptor_last: int = _stream("The last one.", 31_999)
    own_control_first: int = _stream("The first stream id for a consumer's own progress.", 32_000)
    own_control_last: int = _stream("The last one.", 32_999)


@settings("shm")
class ShmSettings:
    """Where regions lie, and where a consumer may map them from."""

    base_dir: Path = setting(
        "The directory below which regions are made.", default=Path("/dev/shm"), flag="--shm-base-dir"
    )
    namespace: str = setting("Keeps deployments on one machine apart.", default="default", flag="--namespace")
    allowed_base_dirs: tuple[Path, ...] = setting(
        "Regions elsewhere are refused. Empty: the base directory.", default=()
    )
