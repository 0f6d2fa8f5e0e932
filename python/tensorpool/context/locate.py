"""Streams by name or tags: discovery, and the consumer of a discovered stream (discovery §7, §9).

A discovered stream is a hint; the stream's own driver decides. The order is: query, attach at the driver that
the response names, compare the epoch, follow the announces. An outdated response leads to another query, not
to an error.

A stream whose driver is on another host is read from the bridge that its `reach:bridge://…` tag names. A copy
that a bridge has written into shared memory here is an ordinary stream of the driver here. The tag comes from
another host: only those parameters of its channels are accepted that a subscription needs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import parse_qs, urlsplit

from .. import _native
from ..attributes.tags import from_wire
from ..client import Consumer, LeaseOptions
from ..client.lease import attach_error, lease_status
from ..client.options import FRESH_PERIODS
from ..discovery import DiscoveredStream, DiscoveryClient, DiscoverySettings, Filter, routes
from ..discovery.channels import Channel, endpoint_of, is_ipc
from ..driver import namespace_on
from ..errors import (
    AmbiguousStream,
    AttachError,
    ClosedError,
    CodecError,
    ConfigError,
    DiscoveryError,
    NoProvider,
    RegionRejected,
    StreamNotFound,
    StreamNotLocal,
)
from ..sbe import ShmPoolAnnounce
from ..transport import SHARED_CHANNEL, Connection, StreamAddress

LAYOUT_VERSION: Final = 1
_QUERY_PAUSE_S: Final = 0.05
_MIN_MAPPING_S: Final = 1.0
_POLL_S: Final = 0.002
_BRIDGE_POLL_S: Final = 0.005
_MIN_QUERY_S: Final = 0.25
_MAX_QUERY_S: Final = 1.0
_POLL_LIMIT: Final = 256
# All other channel parameters concern sockets, files and limits of this host.
_CHANNEL_PARAMETERS: Final = ("endpoint", "control", "control-mode", "interface", "reliable", "alias")


class StreamLocator:
    """Queries of one context: at the configured providers, and at the driver of the context."""

    def __init__(self, connection: Connection, settings: DiscoverySettings, *, has_driver: bool) -> None:
        self.connection = connection
        self.settings = settings
        self._has_driver = has_driver
        self._client: DiscoveryClient | None = None
        self._driver_client: DiscoveryClient | None = None
        self._closed = False

    def timeout_s(self, given: float | None) -> float:
        """`given`, or the configured timeout of a query."""
        return self.settings.timeout_ns / 1e9 if given is None else given

    def find(self, query: Filter, timeout: float) -> list[DiscoveredStream]:
        """Matching streams, from the driver or the registries that `[discovery]` names. Raises NoProvider."""
        self._check_open()
        if self._client is None:
            self._client = self._open_client(self.settings)
        return self._client.find(query, timeout=timeout)

    def find_at_driver(self, query: Filter, timeout: float) -> list[DiscoveredStream]:
        """Matching streams of the driver of this context, where `find` asks registries instead.

        A bridge gives its copy of a stream the same name, and registries need not know the copy.
        """
        if self.settings.channel is None or not self._has_driver:
            return []
        if self._driver_client is None:
            self._driver_client = self._open_client(
                replace(self.settings, channel=None, replicas=(), response_channel=None)
            )
        try:
            return self._driver_client.find(query, timeout=timeout)
        except DiscoveryError:
            return []

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this context is closed; open a new one")

    def _open_client(self, settings: DiscoverySettings) -> DiscoveryClient:
        providers = routes(settings, self.connection.stream_ids.control_address)
        return DiscoveryClient(self.connection.conductor, providers, client_id=settings.client_id)

    def is_local(self, stream: DiscoveredStream) -> bool | None:
        """Whether the driver of `stream` is on this media driver; None if that is unknown."""
        if self.settings.channel is None:
            # The driver answered itself, on its own control stream.
            return True
        if not is_ipc(stream.control_channel):
            # A driver may take requests from the network and still be here: its announces decide.
            is_usable = control_address_or_none(stream) is not None
            return None if is_usable and not stream.needs_bridge else False
        namespace = namespace_on(self.connection.aeron_dir, stream.control_stream_id)
        if namespace is None:
            # No driver is registered on that control stream. The registry may know it: on this media driver,
            # what is local to the registry is local here. Else a stream with a bridge is probably remote.
            if stream.supports_local_attach and all(map(is_ipc, self.settings.registries)):
                return True
            return False if stream.needs_bridge else None
        instance_id = stream.driver_instance_id
        return namespace == instance_id or namespace.endswith(f".{instance_id}")

    def is_announced(self, stream: DiscoveredStream) -> bool:
        """Whether `stream` is announced on this media driver in its epoch; waits some announce periods.

        For drivers that do not register their namespace with the media driver.
        """
        announces = self.connection.subscription(self.connection.stream_ids.announce)
        deadline = time.monotonic() + self.freshness_s
        try:
            while time.monotonic() < deadline:
                if any(_is_announce_of(stream, message) for message in announces.poll(_POLL_LIMIT)):
                    return True
                time.sleep(_POLL_S)
            return False
        finally:
            announces.close()

    @property
    def freshness_s(self) -> float:
        """Announces are repeated within this time."""
        return FRESH_PERIODS * self.connection.announce_period_ns / 1e9

    def close(self) -> None:
        """Closes the discovery clients; later queries raise ClosedError."""
        self._closed = True
        for client in (self._client, self._driver_client):
            if client is not None:
                client.close()


def control_address(stream: DiscoveredStream) -> StreamAddress:
    """The control stream of the driver that a result names. Raises DiscoveryError if it cannot be used."""
    address = control_address_or_none(stream)
    if address is None:
        raise DiscoveryError(
            f"{stream} has the control channel {stream.control_channel!r}, which is not used: allowed are "
            f"aeron:ipc and aeron:udp with the parameters {', '.join(_CHANNEL_PARAMETERS)}"
        )
    return address


def control_address_or_none(stream: DiscoveredStream) -> StreamAddress | None:
    """The control stream of the driver that a result names; None if its channel is not used.

    Results come from any process: parameters that make this media driver allocate or bind are refused.
    """
    channel = Channel.parse(stream.control_channel)
    if channel is not None and channel.media == "ipc":
        # Aeron distinguishes IPC streams by their id alone.
        return StreamAddress(SHARED_CHANNEL, stream.control_stream_id)
    if channel is None or not set(channel.parameters) <= set(_CHANNEL_PARAMETERS):
        return None
    if endpoint_of(stream.control_channel) is None:
        return None
    return StreamAddress(stream.control_channel, stream.control_stream_id)


def _is_announce_of(stream: DiscoveredStream, message: bytes) -> bool:
    try:
        announce = ShmPoolAnnounce.decode(message)
    except CodecError:
        return False
    return (announce.stream_id, announce.epoch) == (stream.stream_id, stream.epoch)


def find_consumer(
    locator: StreamLocator,
    query: Filter,
    timeout: float,
    *,
    lease: LeaseOptions,
    open_stream: Callable[[DiscoveredStream], Consumer],
    open_bridge: Callable[[str], Consumer],
) -> Consumer:
    """A consumer of the only stream that matches `query`; repeats the query for `timeout` seconds.

    `open_stream` opens a consumer at the stream's own driver, `open_bridge` a consumer of a fallback URI.
    Raises StreamNotFound, AmbiguousStream, StreamNotLocal, NoProvider or AttachError.
    """
    search = _ConsumerSearch(
        locator, query, time.monotonic() + timeout, lease, open_stream=open_stream, open_bridge=open_bridge
    )
    return search.run()


def find_local_stream(locator: StreamLocator, query: Filter, timeout: float) -> DiscoveredStream:
    """The only stream of this media driver that matches `query`; repeats the query for `timeout` seconds.

    Raises StreamNotFound, AmbiguousStream, StreamNotLocal or NoProvider.
    """
    deadline = time.monotonic() + timeout
    while True:
        left_s = min(max(deadline - time.monotonic(), _MIN_QUERY_S), _MAX_QUERY_S)
        failure: DiscoveryError
        try:
            found = locator.find(query, left_s)
            local = [stream for stream in found if locator.is_local(stream) is not False]
            if local := local or locator.find_at_driver(query, left_s):
                return _choose(local, query)
            failure = not_local_error(found[0]) if found else _not_found(query)
        except NoProvider as error:
            failure = error
        if time.monotonic() >= deadline:
            raise failure
        time.sleep(_QUERY_PAUSE_S)


def _not_found(query: Filter) -> StreamNotFound:
    return StreamNotFound(
        f"no stream {_describe(query)} was found in time; `tensorpool discover` lists streams"
    )


@dataclass(frozen=True, slots=True)
class _ConsumerSearch:
    """One call of `find_consumer`. Attempts return the error of a failure that a later attempt may cure."""

    locator: StreamLocator
    query: Filter
    deadline: float
    lease: LeaseOptions
    open_stream: Callable[[DiscoveredStream], Consumer]
    open_bridge: Callable[[str], Consumer]

    def run(self) -> Consumer:
        failure: DiscoveryError | AttachError | RegionRejected | None = None
        while True:
            outcome = self._attempt()
            if isinstance(outcome, Consumer):
                return outcome
            # A last query without an answer says less than the failure of an earlier attempt.
            if failure is None or not isinstance(outcome, NoProvider):
                failure = outcome
            if time.monotonic() >= self.deadline:
                raise failure
            time.sleep(_QUERY_PAUSE_S)

    def _attempt(self) -> Consumer | DiscoveryError | AttachError | RegionRejected:
        try:
            found = self.locator.find(self.query, self._query_timeout_s())
        except NoProvider as error:
            return error
        if not found:
            return _not_found(self.query)
        candidates = [stream for stream in found if self.locator.is_local(stream) is not False]
        local = [stream for stream in candidates if is_ipc(stream.control_channel)]
        local = local or self._bridged_copies() or candidates
        if not local:
            return self._consume_remote(_choose(found, self.query))
        stream = _choose(local, self.query)
        if self.locator.is_local(stream) is None and not self.locator.is_announced(stream):
            return self._consume_remote(stream)
        return self._attach(stream)

    def _query_timeout_s(self) -> float:
        return min(max(self.deadline - time.monotonic(), _MIN_QUERY_S), _MAX_QUERY_S)

    def _bridged_copies(self) -> list[DiscoveredStream]:
        return self.locator.find_at_driver(self.query, self._query_timeout_s())

    def _attach(self, stream: DiscoveredStream) -> Consumer | DiscoveryError | AttachError | RegionRejected:
        if stream.layout_version != LAYOUT_VERSION:
            raise DiscoveryError(
                f"{stream} has layout version {stream.layout_version}; this version reads {LAYOUT_VERSION}"
            )
        consumer = self.open_stream(stream)
        lease = lease_status(consumer)
        # Regions are mapped within milliseconds; the rest of the time is for a busy machine.
        wait_s = min(self.locator.freshness_s, max(self.deadline - time.monotonic(), _MIN_MAPPING_S))
        deadline = time.monotonic() + wait_s
        while lease.granted and consumer.epoch is None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        epoch = consumer.epoch
        if epoch == stream.epoch:
            return consumer
        rejection = _rejection_of(consumer) if epoch is None else None
        consumer.close()
        if rejection is not None:
            return rejection
        if not lease.granted:
            code, message = lease.code or "NO_ANSWER", lease.message or ""
            return attach_error(stream.stream_id, code, message, self.lease)
        return StreamNotFound(
            f"{stream} was found in epoch {stream.epoch}, and its driver has {epoch or 'none'}; ask again"
        )

    def _consume_remote(self, stream: DiscoveredStream) -> Consumer | StreamNotLocal:
        uri = stream.fallback_uri
        if uri is None:
            return not_local_error(stream)
        return consume_from_bridge(
            stream, uri, self.open_bridge, deadline=self.deadline, freshness_s=self.locator.freshness_s
        )


def _rejection_of(consumer: Consumer) -> RegionRejected | None:
    """Why the regions of the granted epoch are not mapped, if they were checked and rejected."""
    try:
        consumer.poll()
    except RegionRejected as error:
        return error
    return None


def consume_from_bridge(
    stream: DiscoveredStream,
    uri: str,
    open_bridge: Callable[[str], Consumer],
    *,
    deadline: float,
    freshness_s: float,
) -> Consumer | StreamNotLocal:
    """A consumer of the bridge's frames once the bridge announces the epoch of `stream`; or why not."""
    if (fault := uri_fault(uri)) is not None:
        return not_local_error(stream, f"the bridge of its tag cannot be used ({fault})")
    try:
        consumer = open_bridge(uri)
    except ConfigError as error:
        return not_local_error(stream, f"the bridge of its tag cannot be used ({error})")
    # The bridge repeats the announces of its source within this time. After it, a new query may find a stream
    # that is current.
    deadline = min(deadline, time.monotonic() + freshness_s)
    try:
        while consumer.epoch != stream.epoch and time.monotonic() < deadline:
            time.sleep(_BRIDGE_POLL_S)
    except BaseException:
        consumer.close()
        raise
    epoch = consumer.epoch
    if epoch == stream.epoch:
        return consumer
    consumer.close()
    failure = "announces nothing" if epoch is None else f"has epoch {epoch}, and not {stream.epoch}"
    return not_local_error(stream, f"the bridge of its tag {failure}")


def uri_fault(uri: str) -> str | None:
    """Why a discovered fallback URI is not used; None if it can be."""
    try:
        values = parse_qs(urlsplit(uri).query, strict_parsing=True)
    except ValueError as error:
        return str(error)
    for key in ("payload", "control"):
        channel = Channel.parse(values.get(key, [""])[0])
        if (
            channel is None
            or channel.media != "udp"
            or not set(channel.parameters) <= set(_CHANNEL_PARAMETERS)
        ):
            return (
                f"its {key} channel is not a plain UDP channel; allowed parameters are "
                f"{', '.join(_CHANNEL_PARAMETERS)}"
            )
    return None


def not_local_error(
    stream: DiscoveredStream, reason: str = "no bridge has a copy of it here"
) -> StreamNotLocal:
    """The error for a stream of another host that cannot be read here."""
    return StreamNotLocal(
        f"{stream} is not on this media driver, so that its memory cannot be mapped here, and {reason}; run "
        f"tensorpool bridge on both hosts with a mapping of source_stream_id {stream.stream_id}, and ask "
        "by the same name",
        stream_id=stream.stream_id,
        driver_instance_id=stream.driver_instance_id,
    )


def check_stream_reference(stream_id: int | None, name: str | None, tags: Sequence[str]) -> None:
    """Raises ConfigError unless there is either a stream id, or a name or tags."""
    if (stream_id is None) == (name is None and not tags):
        raise ConfigError(
            "give a stream id, or a name or tags to find it by, as in consumer(name='camera-1')"
        )


def fallback_stream_id(uri: str) -> int:
    """The stream id of a fallback URI. Raises ConfigError."""
    try:
        return _native.parse_fallback_uri(uri).stream_id
    except ValueError as error:
        raise ConfigError(f"fallback_uri {uri!r}: {error}") from None


def _describe(query: Filter) -> str:
    parts = [f"named {from_wire(query.name)!r}"] if query.name else []
    parts += [f"tagged {', '.join(sorted(map(from_wire, query.tags)))}"] if query.tags else []
    return " and ".join(parts)


def _choose(streams: list[DiscoveredStream], query: Filter) -> DiscoveredStream:
    """The only stream; of several, the only one with a producer. Raises AmbiguousStream."""
    candidates = [stream for stream in streams if stream.has_producer] or streams
    if len(candidates) > 1:
        raise AmbiguousStream(
            f"{len(candidates)} streams are {_describe(query)}: {', '.join(map(str, candidates))}; add tags, "
            "or attach by stream id"
        )
    return candidates[0]
