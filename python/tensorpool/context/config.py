"""Settings of a connection and a context: `[aeron]`, `[context]` and `[shm]`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from ..discovery.channels import channel_fault
from ..runtime.config import (
    DurationNs,
    FileMode,
    IdRange,
    SizeBytes,
    parse_duration,
    setting,
    settings,
    table,
)
from ..transport.channels import DEFAULT_DESCRIPTOR_TERM_BYTES, SHARED_CHANNEL, term_fault
from ..transport.connection import Scheduling, is_real_time, priority_fault
from ..units import MAX_AERON_STREAM_ID, MAX_STREAM_ID

# Those of Aeron keep Aeron's names.
MediaDriverIdle = Literal["rest", "backoff", "yield", "spin"]


def _stream_id(doc: str, default: int) -> int:
    stream_id: int = setting(doc, default=default, minimum=1, maximum=MAX_AERON_STREAM_ID)
    return stream_id


def _stream_ids_fault(ids: IdRange) -> str | None:
    """Why Aeron has no streams with these ids; None if it has."""
    return (
        None
        if ids.first >= 1 and ids.last <= MAX_AERON_STREAM_ID
        else f"use ids from 1 to {MAX_AERON_STREAM_ID}"
    )


def _dedicated_id(kind: str) -> int | None:
    stream_id: int | None = setting(
        f"Id of its {kind} stream. None: the shared one.",
        default=None,
        minimum=1,
        maximum=MAX_AERON_STREAM_ID,
    )
    return stream_id


def _channel(kind: str) -> str:
    channel: str = setting(
        f"Channel of the {kind} stream. For a UDP channel all programs of a host use one media driver: set "
        "`network_dir`, or a multicast address.",
        default=SHARED_CHANNEL,
        check=channel_fault,
    )
    return channel


@table
class DedicatedStreamSettings:
    """Aeron streams that one stream uses instead of the shared ones: its dedicated streams."""

    stream_id: int = setting("The stream.", minimum=1, maximum=MAX_STREAM_ID)
    descriptor_stream_id: int | None = _dedicated_id("descriptor")
    control_stream_id: int | None = _dedicated_id("control")
    qos_stream_id: int | None = _dedicated_id("QoS")
    metadata_stream_id: int | None = _dedicated_id("metadata")


@settings("aeron")
class AeronSettings:
    """The media driver, and the ids of the shared streams."""

    dir: Path | None = setting(
        "The media driver's directory. Not set: `$AERON_DIR`, or Aeron's default.",
        default=None,
        flag="--aeron-dir",
    )
    media_driver: Literal["auto", "external"] = setting(
        "`auto` embeds a media driver if none runs in that directory; `external` only connects.",
        default="auto",
    )
    dir_mode: FileMode = setting(
        "Permission bits of the directory of an embedded media driver. For a group: 0770, with a umask of "
        "007, because Aeron creates its files by the umask.",
        default=0o700,
    )
    idle: MediaDriverIdle = setting(
        "How an embedded media driver waits for work. Frames do not pass through it; new handles, and room "
        "for new descriptors, wait for it. `rest` sleeps 0.2 to 1 ms while it has work, 5 ms when it has "
        "none, and 10 ms after a second without: about 120 wake-ups a second, below 1 % of a core; a burst "
        "of over a million frames a second after such a pause may lose frames as `back_pressured` for that "
        "time. `backoff` sleeps 1 ms at most, after short spins: about 4,000 wake-ups a second, 5 to 15 % "
        "of a core. `yield` and `spin` use a whole core, for bursts at any rate.",
        default="rest",
    )
    cpu_affinity: tuple[int, ...] = setting(
        "Cores of the threads of the connection: conductor, Aeron's client, an embedded media driver. Empty: "
        "all cores of the process. A core that no other thread uses keeps these threads from those that wait "
        "for frames.",
        default=(),
    )
    priority: str = setting(
        "Priority of the same threads. `normal`; `nice:-5`, which goes before others; `fifo:10`, real time. "
        "Refused, with what to do, where the system does not allow it.",
        default="normal",
        check=priority_fault,
    )
    network_dir: Path | None = setting(
        "Directory of the media driver for UDP channels, as `tensorpool media-driver` runs one. Not set: "
        "each program that opens a UDP channel starts one in a process of its own, in `<dir>-udp-<n>`.",
        default=None,
    )
    connect_timeout_ns: DurationNs = setting(
        "How long `open` waits for a media driver.", default=parse_duration("10s"), minimum=1
    )
    driver_timeout_ns: DurationNs = setting(
        "A media driver without activity for this long is taken to be dead.",
        default=parse_duration("5s"),
        minimum=parse_duration("100ms"),
    )
    announce_period_ns: DurationNs = setting(
        "Period of announces. A region without activity for three periods is stale.",
        default=parse_duration("1s"),
        minimum=parse_duration("10ms"),
    )
    clock_domain: Literal["monotonic", "realtime_synced"] = setting(
        "Clock of announces, activity and the times of frames that have none from their source. "
        "`realtime_synced`: the time of day of this host, which PTP or NTP keeps equal on all hosts. Equal "
        "for the driver and its producers.",
        default="monotonic",
    )
    control_stream_id: int = _stream_id("Id of the control stream.", 1000)
    announce_stream_id: int = _stream_id("Id of the announce stream.", 1001)
    descriptor_stream_id: int = _stream_id("Id of the descriptor stream.", 1100)
    qos_stream_id: int = _stream_id("Id of the QoS stream.", 1200)
    metadata_stream_id: int = _stream_id("Id of the metadata stream.", 1300)
    control_channel: str = _channel("control")
    qos_channel: str = _channel("QoS")
    metadata_channel: str = _channel("metadata")
    streams: tuple[DedicatedStreamSettings, ...] = setting(
        "Streams with dedicated Aeron streams. Producers, consumers, monitor, recorder and bridge use "
        "them if all have this table.",
        default=(),
    )
    descriptor_term_bytes: SizeBytes = setting(
        "Term length of a producer's descriptor publication, which takes three terms of shared memory. "
        "`tensorpool doctor sizing` computes what a stream needs.",
        default=DEFAULT_DESCRIPTOR_TERM_BYTES,
        check=term_fault,
    )

    @property
    def scheduling(self) -> Scheduling:
        """Cores and priority of the threads of the connection."""
        return Scheduling(self.cpu_affinity, self.priority)

    def check(self) -> Iterator[tuple[str, str]]:
        """Faults of settings that are valid by themselves, as (setting, fault)."""
        if is_real_time(self.priority) and self.idle in ("spin", "yield"):
            yield "priority", f"a media driver that never sleeps (idle = {self.idle!r}) would stop its core"
        # A table that could not be read is None here, and is already reported.
        listed: Iterable[DedicatedStreamSettings | None] = self.streams
        counts = Counter(own.stream_id for own in listed if own is not None)
        for stream_id, count in counts.items():
            if count > 1:
                yield "streams", f"stream {stream_id} is listed {count} times"


@settings("context")
class ContextSettings:
    """The driver of a program, its leases, reports, and per-consumer streams."""

    mode: Literal["auto", "driver", "embedded", "standalone"] = setting(
        "`auto` attaches to a running driver, or embeds one; `driver` only attaches; `embedded` always "
        "embeds one; `standalone` uses none: each producer creates its own regions.",
        default="auto",
    )
    keepalive_ns: DurationNs = setting(
        "Period of the keepalives of a lease. A driver with shorter leases gets them as often as it needs.",
        default=parse_duration("1s"),
        minimum=parse_duration("10ms"),
    )
    attach_timeout_ns: DurationNs = setting(
        "How long an attach waits for the response of the driver.",
        default=parse_duration("5s"),
        minimum=parse_duration("10ms"),
    )
    attach_retry_ns: DurationNs = setting(
        "Mean pause between two attach requests; each pause differs from it by up to half.",
        default=parse_duration("1s"),
        minimum=parse_duration("10ms"),
    )
    attach_revision: Literal["auto", "1", "2"] = setting(
        "Revision of the attach messages that the driver uses. `auto` asks in the first, and in both by "
        "turns if nothing answers.",
        default="auto",
    )
    hello_period_ns: DurationNs = setting(
        "Period of ConsumerHello, QoS reports and status reports. A consumer that sends none for five "
        "periods is stale: its per-consumer streams are closed.",
        default=parse_duration("1s"),
        minimum=parse_duration("10ms"),
    )
    report_latency: bool = setting(
        "The status reports of consumers include their latency: of the last hello period, and in total.",
        default=True,
    )
    report_status: bool = setting(
        "Producers and consumers publish a status report on the services' status stream, once a hello period "
        "and when they close: key `status` of `service:producer:<stream>` and `service:consumer:<stream>`. "
        "Supervisor, `tensorpool top` and ledger read them.",
        default=True,
    )
    aeron_counters: bool = setting(
        "Producers and consumers publish some of their counts as Aeron counters: up to 64 in a program.",
        default=True,
    )
    progress_interval_ns: DurationNs = setting(
        "Shortest time between two FrameProgress messages of a frame, whatever consumers request. If they "
        "request nothing, it is 250us.",
        default=parse_duration("100us"),
        maximum=parse_duration("1h"),
    )
    progress_step_bytes: SizeBytes = setting(
        "Fewest bytes between two FrameProgress messages of a frame, whatever consumers request. If they "
        "request nothing, it is 64KiB.",
        default=4096,
        maximum=MAX_AERON_STREAM_ID,
    )
    per_consumer_channels: tuple[str, ...] = setting(
        "Channels on which a producer grants per-consumer streams. Empty: it declines all requests.",
        default=(SHARED_CHANNEL,),
    )
    per_consumer_descriptor_ids: IdRange = setting(
        "Ids of per-consumer descriptor streams.", default=IdRange(31_000, 31_999), check=_stream_ids_fault
    )
    per_consumer_control_ids: IdRange = setting(
        "Ids of per-consumer control streams, which carry progress.",
        default=IdRange(32_000, 32_999),
        check=_stream_ids_fault,
    )


@settings("shm")
class ShmSettings:
    """The directory of regions, and the directories from which a consumer maps them."""

    base_dir: Path = setting(
        "The directory below which regions are created.", default=Path("/dev/shm"), flag="--shm-base-dir"
    )
    namespace: str = setting("Separates deployments on one host.", default="default", flag="--namespace")
    allowed_base_dirs: tuple[Path, ...] = setting(
        "Announced regions outside these directories are rejected. Empty: the base directory.", default=()
    )
