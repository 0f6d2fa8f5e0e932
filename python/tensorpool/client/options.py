"""Options of producers and consumers, what they request and grant, and what they report.

`ctx.producer(**options)` and `ctx.consumer(**options)` are typed by `ProducerKeywords` and
`ConsumerKeywords`; the options then travel as one `ProducerOptions` or `ConsumerOptions`, which the native
endpoints read by attribute (`crates/native/src/options.rs`). Pure, except for
`ReportOptions.start_reporter`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypedDict, TypeVar, get_args

import numpy.typing as npt

from .. import _native
from ..cuda import parse_device
from ..errors import ConfigError
from ..runtime.config import IdRange
from ..transport import SHARED_CHANNEL, Connection, DedicatedStreams, StreamIds
from ..units import MAX_AERON_STREAM_ID, MAX_STREAM_ID, MAX_U32

if TYPE_CHECKING:
    from .merge_map import MergeMap

Policy: TypeAlias = Literal["stream", "latest"]
Idle: TypeAlias = Literal["backoff", "busy-spin", "yield", "sleep"]
PoolSizes: TypeAlias = Sequence[str | int] | str | int

_MAX_NSLOTS: Final = 1 << 20
_MIN_RATE_HZ: Final = 0.0001
_MAX_LABEL: Final = 64
FRESH_PERIODS: Final = 3
"""A region whose activity timestamp is older than this many announce periods is stale (wire §15.14)."""
# A consumer that sends nothing for this many report periods is stale (wire §5).
_STALE_PERIODS: Final = 5


class ProducerKeywords(TypedDict, total=False):
    """Keywords of `ctx.producer()`, which explains them."""

    pools: PoolSizes | None
    nslots: int | None
    name: str | None
    tags: Sequence[str]
    metadata: Mapping[str, Any] | None
    dtype: npt.DTypeLike | None
    descriptor_stream_id: int | None
    metadata_stream_id: int | None
    control_stream_id: int | None
    qos_stream_id: int | None
    publish_timestamps: bool
    prefault: bool
    require_hugepages: bool
    numa_node: int | None
    copy_threads: int
    per_consumer_streams: bool
    announce_source: bool
    merge_map: MergeMap | None
    traces: bool
    device: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """All options of one producer. None: the configured value, or the driver's."""

    pools: PoolSizes | None = None
    nslots: int | None = None
    name: str | None = None
    tags: Sequence[str] = ()
    metadata: Mapping[str, Any] | None = None
    dtype: npt.DTypeLike | None = None
    descriptor_stream_id: int | None = None
    metadata_stream_id: int | None = None
    control_stream_id: int | None = None
    qos_stream_id: int | None = None
    publish_timestamps: bool = False
    prefault: bool = True
    require_hugepages: bool = False
    numa_node: int | None = None
    copy_threads: int = 1
    per_consumer_streams: bool = True
    announce_source: bool = True
    merge_map: MergeMap | None = None
    traces: bool = False
    device: str | None = None

    def __post_init__(self) -> None:
        if self.nslots is not None:
            _check_nslots(self.nslots)
        _check_copy_threads(self.copy_threads, len(os.sched_getaffinity(0)))
        _check_dedicated_streams(self)
        if self.device is not None:
            parse_device(self.device)

    @property
    def needs_provision(self) -> bool:
        """Whether the driver must learn the layout or the names of the stream before the attach."""
        return not (
            self.pools is None
            and self.nslots is None
            and self.numa_node is None
            and self.name is None
            and not self.tags
        )

    @property
    def describes_source(self) -> bool:
        """Whether there is metadata to publish when the producer opens."""
        return not (self.name is None and not self.tags and self.metadata is None and self.dtype is None)


class ConsumerKeywords(TypedDict, total=False):
    """Keywords of `ctx.consumer()` that do not choose the stream; `ctx.consumer()` explains them."""

    policy: Policy
    idle: Idle
    timeout: float | None
    max_rate_hz: float | None
    per_consumer_stream: bool
    label: str
    progress: bool
    progress_interval_us: int | None
    progress_bytes: int | None
    progress_rows: int | None
    per_consumer_control: bool
    max_outstanding_seq_gap: int
    supports_shm: bool
    descriptor_stream_id: int | None
    metadata_stream_id: int | None
    control_stream_id: int | None
    qos_stream_id: int | None
    device: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """All options of one consumer. None: the configured value, or no limit."""

    policy: Policy = "stream"
    idle: Idle = "backoff"
    timeout: float | None = None
    max_rate_hz: float | None = None
    per_consumer_stream: bool = False
    label: str = ""
    progress: bool = False
    progress_interval_us: int | None = None
    progress_bytes: int | None = None
    progress_rows: int | None = None
    per_consumer_control: bool = True
    max_outstanding_seq_gap: int = 256
    supports_shm: bool = True
    descriptor_stream_id: int | None = None
    metadata_stream_id: int | None = None
    control_stream_id: int | None = None
    qos_stream_id: int | None = None
    device: str | None = None

    def __post_init__(self) -> None:
        _check_dedicated_streams(self)
        if self.device is not None:
            parse_device(self.device)
        if self.max_outstanding_seq_gap < 0:
            raise ConfigError(f"max_outstanding_seq_gap {self.max_outstanding_seq_gap}: use 0 or more frames")
        if self.policy not in get_args(Policy):
            raise ConfigError(f"policy {self.policy!r}: use 'stream' or 'latest'")
        if fault := _rate_fault(self.max_rate_hz):
            raise ConfigError(f"max_rate_hz {self.max_rate_hz!r}: {fault}")
        if not self.label.isascii() or not self.label.isprintable() or len(self.label) > _MAX_LABEL:
            raise ConfigError(
                f"label {self.label!r}: use at most {_MAX_LABEL} visible ASCII characters, as in 'viewer'"
            )
        for name in ("progress_interval_us", "progress_bytes", "progress_rows"):
            hint: int | None = getattr(self, name)
            if hint is not None and not self.progress:
                raise ConfigError(f"{name} {hint}: only with progress=True")
            if hint is not None and not 0 <= hint <= MAX_U32:
                raise ConfigError(f"{name} {hint}: use a whole number from 0 to {MAX_U32}")

    @property
    def min_interval_ns(self) -> int | None:
        """The least time between two frames that the consumer keeps itself.

        None if the rate is a whole number, so that the producer can be asked for it (wire §11).
        """
        if self.max_rate_hz is None or self.max_rate_hz == int(self.max_rate_hz):
            return None
        return round(1e9 / self.max_rate_hz)


def _rate_fault(rate_hz: object) -> str | None:
    if rate_hz is None:
        return None
    is_number = isinstance(rate_hz, int | float) and not isinstance(rate_hz, bool)
    # A comparison with nan is false.
    if is_number and _MIN_RATE_HZ <= rate_hz <= MAX_U32:  # type: ignore[operator]
        return None
    return f"use a number of frames a second from {_MIN_RATE_HZ} on, as in 25 or 0.5"


def check_keywords(call: str, given: Iterable[str], known: Collection[str]) -> None:
    """Raises TypeError for a keyword that `call` does not have, with the most similar one that it has."""
    for name in given:
        if name in known:
            continue
        similar = get_close_matches(name, known, 1)
        # A word within a longer one, as in `slots`, is less similar by letters than by meaning.
        similar = similar or [each for each in known if name in each or each in name]
        hint = f"did you mean {similar[0]}=?" if similar else f"it has {', '.join(known)}"
        raise TypeError(f"{call}() has no argument {name!r}; {hint}")


_Options = TypeVar("_Options", ProducerOptions, ConsumerOptions)


def check_stream_id(stream_id: object) -> int:
    """`stream_id` if it can identify a stream. Raises ConfigError."""
    if isinstance(stream_id, str):
        raise ConfigError(
            f"stream id {stream_id!r}: use a number of your choice, with the name beside it, as in "
            f"ctx.producer(10000, name={stream_id!r})"
        )
    if not isinstance(stream_id, int):
        raise ConfigError(f"stream id {stream_id!r}: use a whole number, as in 10000")
    if not 0 < stream_id <= MAX_STREAM_ID:
        raise ConfigError(f"stream id {stream_id}: use 1 to {MAX_STREAM_ID}, as in 10000")
    return stream_id


def _check_nslots(nslots: object) -> None:
    if not isinstance(nslots, int) or not 0 < nslots <= _MAX_NSLOTS or nslots & (nslots - 1):
        raise ConfigError(f"nslots {nslots!r}: use a power of two from 1 to {_MAX_NSLOTS}, as in 8")


def _check_copy_threads(threads: object, cores: int) -> None:
    if not isinstance(threads, int) or threads not in (1, 2):
        raise ConfigError(
            f"copy_threads {threads!r}: use 1, or 2 for a second thread that copies large frames"
        )
    if threads > cores:
        raise ConfigError(
            f"copy_threads {threads}: this process may use one core, which a second thread would only take "
            "from the first; use copy_threads=1, or give the process more cores (taskset, the cpuset of its "
            "container)"
        )


def descriptor_stream_id(options: ProducerOptions | ConsumerOptions, ids: StreamIds) -> int:
    """The descriptor stream that an endpoint with these options uses. Raises ConfigError."""
    given = options.descriptor_stream_id
    return _check_aeron_stream_id("descriptor", ids.descriptor if given is None else given, 1100)


def metadata_stream_id(options: ProducerOptions | ConsumerOptions, ids: StreamIds) -> int:
    """The metadata stream that an endpoint with these options uses. Raises ConfigError."""
    given = options.metadata_stream_id
    return _check_aeron_stream_id("metadata", ids.metadata if given is None else given, 1300)


def with_dedicated_streams(options: _Options, dedicated: DedicatedStreams) -> _Options:
    """`options` with the streams that the configuration names for this stream, where none are given."""
    return replace(
        options,
        descriptor_stream_id=_first(options.descriptor_stream_id, dedicated.descriptor),
        metadata_stream_id=_first(options.metadata_stream_id, dedicated.metadata),
        control_stream_id=_first(options.control_stream_id, dedicated.control),
        qos_stream_id=_first(options.qos_stream_id, dedicated.qos),
    )


def _first(given: int | None, configured: int | None) -> int | None:
    return configured if given is None else given


def _check_dedicated_streams(options: ProducerOptions | ConsumerOptions) -> None:
    for kind, given, example in (
        ("control", options.control_stream_id, 1000),
        ("QoS", options.qos_stream_id, 1200),
    ):
        if given is not None:
            _check_aeron_stream_id(kind, given, example)


def _check_aeron_stream_id(kind: str, stream_id: int, example: int) -> int:
    if not 0 < stream_id <= MAX_AERON_STREAM_ID:
        raise ConfigError(f"{kind} stream id {stream_id}: use 1 to {MAX_AERON_STREAM_ID}, as in {example}")
    return stream_id


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantPolicy:
    """What a producer grants to consumers."""

    channels: tuple[str, ...]
    descriptor_ids: tuple[int, int]
    control_ids: tuple[int, int]
    stale_ns: int
    progress_interval_us: int
    progress_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerRequest:
    """What a consumer asks for in its ConsumerHello."""

    rate_limited: bool
    max_rate_hz: int
    supports_progress: bool
    progress_interval_us: int | None
    progress_bytes_delta: int | None
    progress_major_delta_units: int | None
    descriptor: tuple[str, int, int] | None
    control: tuple[str, int, int] | None


@dataclass(frozen=True, slots=True)
class PerConsumerStreams:
    """Channels and id ranges of per-consumer streams, and the limits of progress (wire §5)."""

    channels: tuple[str, ...]
    """A producer grants per-consumer streams on these channels; empty: it declines every request."""
    descriptor_ids: IdRange
    control_ids: IdRange
    progress_interval_ns: int
    """Shortest time between two FrameProgress messages of a frame, whatever consumers request."""
    progress_bytes: int
    """Fewest bytes between two FrameProgress messages of a frame, whatever consumers request."""

    def grants(self, report_period_ns: int) -> GrantPolicy:
        """What a producer grants. `report_period_ns` is the period of ConsumerHello."""
        return GrantPolicy(
            channels=self.channels,
            descriptor_ids=(self.descriptor_ids.first, self.descriptor_ids.last),
            control_ids=(self.control_ids.first, self.control_ids.last),
            stale_ns=_STALE_PERIODS * report_period_ns,
            progress_interval_us=-(-self.progress_interval_ns // 1000),
            progress_bytes=self.progress_bytes,
        )

    def request(self, options: ConsumerOptions) -> ConsumerRequest:
        """What a consumer with these options requests."""
        wants_stream = options.per_consumer_stream or options.max_rate_hz is not None
        wants_control = options.progress and options.per_consumer_control
        return ConsumerRequest(
            rate_limited=options.max_rate_hz is not None,
            # The wire has whole numbers: the producer is asked for the next one up, and the consumer keeps
            # the rate itself (`min_interval_ns`).
            max_rate_hz=math.ceil(options.max_rate_hz or 0),
            supports_progress=options.progress,
            progress_interval_us=options.progress_interval_us,
            progress_bytes_delta=options.progress_bytes,
            progress_major_delta_units=options.progress_rows,
            descriptor=self._proposal(self.descriptor_ids) if wants_stream else None,
            control=self._proposal(self.control_ids) if wants_control else None,
        )

    def _proposal(self, ids: IdRange) -> tuple[str, int, int]:
        channel = self.channels[0] if self.channels else SHARED_CHANNEL
        return channel, ids.first, ids.last


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """What producers and consumers report: latency and ledger on the status stream, and Aeron counters."""

    latency: bool
    counters: bool
    ledgers: bool = True

    @classmethod
    def none(cls) -> ReportOptions:
        """No reports: for programs that only observe, and must not be observed themselves."""
        return cls(latency=False, counters=False, ledgers=False)

    def start_reporter(
        self, endpoint: _native.Producer | _native.Consumer, connection: Connection, *, label: str = ""
    ) -> _native.StatusReporter | None:
        """Reports on `endpoint` once a period until the reporter is closed; None if nothing is reported.

        `label` is what the user calls a consumer.
        """
        # The latency is a part of the status report of a consumer.
        reports_latency = self.latency and self.ledgers and isinstance(endpoint, _native.Consumer)
        if not (self.counters or self.ledgers):
            return None
        services = connection.services
        return _native.StatusReporter(
            endpoint,
            status=(services.status_channel, services.status) if self.ledgers else None,
            latency=reports_latency,
            ledger=self.ledgers,
            counters=self.counters,
            period_ns=connection.report_period_ns,
            label=label,
        )
