"""The driver's discovery provider, and the metadata of its stream plans (discovery §2.1, §13).

The provider responds for the driver's own streams on the control stream. It reads the driver's announces and
the producers' metadata like a registry, so that both follow the same rules. It also repeats these messages on
the channels of registries on other machines. Owned by the agent's thread.

`PlanMetadata` (pure) has the names, tags and data source ids of stream plans. They are published on the
announce stream as metadata version 0. Producers never use this version: registries know the plan's metadata,
and no consumer applies it to frames.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from .. import _native
from ..attributes.tags import MAX_NAME_BYTES, REACH_LOCAL, make_attributes, to_wire, wire_length
from ..discovery.index import DiscoveryIndex, DriverIdentity
from ..discovery.provider import DiscoveryProvider, IndexUpdater
from ..discovery.requests import DiscoveryCounters
from ..errors import CodecError
from ..monitor.reports import is_driver_metadata, is_undescribed, read_stream_id
from ..monitor.streams import DRIVER_VERSION
from ..sbe.wire import ClockDomain, DataSourceAnnounce, DataSourceMeta, PayloadPool, ShmPoolAnnounce
from ..shm.epoch_files import HEADER_SLOT_BYTES
from ..transport import SHARED_CHANNEL, ServiceStreams, StreamAddress, StreamIds
from ..transport.channels import untethered
from .actions import Announce
from .plan import LAYOUT_VERSION, Plan, StreamPlan

if TYPE_CHECKING:
    from .agent import DriverAgent

_POLL_LIMIT: Final = 256
# A thousand streams due at once must not delay keepalives.
_MAX_PER_CYCLE: Final = 16


@dataclass(slots=True)
class _PlanMessages:
    """The encoded metadata of one announced stream; encoded again when its plan changes."""

    plan: StreamPlan | None
    epoch: int
    producer_id: int
    messages: tuple[bytes, ...] = ()


class PlanMetadata:
    """The metadata of the plans of announced streams, repeated every period. Pure."""

    def __init__(self, plan_of: Callable[[int], StreamPlan | None], *, period_ns: int) -> None:
        self._plan_of = plan_of
        self._period_ns = period_ns
        self._announced: dict[int, _PlanMessages] = {}
        # Ordered by due time, because all streams have the same period.
        self._due: deque[_DueMessages] = deque()

    def __contains__(self, stream_id: int) -> bool:
        return stream_id in self._announced

    def is_own(self, stream_id: int, message: bytes) -> bool:
        """Whether metadata of version 0 is valid for the stream: it is the plan's, or the plan has none.

        A bridge forwards such metadata of its source stream.
        """
        entry = self._announced.get(stream_id)
        messages = () if entry is None else self._messages(stream_id, entry)
        return not messages or message in messages

    def put(self, stream_id: int, epoch: int, producer_id: int, now_ns: int) -> tuple[bytes, ...]:
        """Adds a stream that is announced under this epoch. Returns the messages to publish at once."""
        entry = self._announced[stream_id] = _PlanMessages(None, epoch, producer_id)
        self._due.append(_DueMessages(now_ns + self._period_ns, stream_id, entry))
        return self._messages(stream_id, entry)

    def remove(self, stream_id: int) -> None:
        """Removes a stream that is no longer announced."""
        self._announced.pop(stream_id, None)

    def due(self, now_ns: int) -> Iterator[bytes]:
        """Yields the messages to repeat now, of a few streams at a time."""
        for _ in range(_MAX_PER_CYCLE):
            if not self._due or self._due[0].due_ns > now_ns:
                return
            _, stream_id, entry = self._due.popleft()
            if self._announced.get(stream_id) is entry:
                self._due.append(_DueMessages(now_ns + self._period_ns, stream_id, entry))
                yield from self._messages(stream_id, entry)

    def _messages(self, stream_id: int, entry: _PlanMessages) -> tuple[bytes, ...]:
        plan = self._plan_of(stream_id)
        if plan is not entry.plan:
            entry.plan, entry.messages = plan, _encoded(plan, entry)
        return entry.messages


class _DueMessages(NamedTuple):
    due_ns: int
    stream_id: int
    entry: _PlanMessages


def _encoded(plan: StreamPlan | None, entry: _PlanMessages) -> tuple[bytes, ...]:
    if plan is None or not (plan.name or plan.tags or plan.data_source_id is not None):
        return ()
    name = to_wire(plan.name)
    announce = DataSourceAnnounce(
        stream_id=plan.stream_id,
        producer_id=entry.producer_id,
        epoch=entry.epoch,
        meta_version=DRIVER_VERSION,
        name=name if wire_length(name) <= MAX_NAME_BYTES else "",
    )
    meta = DataSourceMeta(
        stream_id=plan.stream_id,
        meta_version=DRIVER_VERSION,
        timestamp_ns=0,
        attributes=make_attributes(plan.tags, plan.data_source_id),
    )
    return announce.encode(), meta.encode()


class EmbeddedDiscovery:
    """A driver's discovery index and provider, and the publication of its plans' metadata."""

    def __init__(self, agent: DriverAgent, plan: Plan) -> None:
        conductor, stream_ids, period_ns = agent.conductor, agent.stream_ids, agent.announce_period_ns
        now_ns, settings = agent.clock.monotonic_ns(), agent.discovery
        identity = DriverIdentity(
            agent.settings.instance_id or agent.namespace,
            stream_ids.control_channel,
            stream_ids.control,
            (REACH_LOCAL,),
        )
        self.counters = DiscoveryCounters(instance=identity.instance_id)
        self._identity = identity
        self._index = DiscoveryIndex()
        self._index.set_driver(identity, announce_period_ns=period_ns)
        self._metadata = PlanMetadata(plan.get, period_ns=period_ns)
        self._updater = IndexUpdater(
            self._index, identity.instance_id, self.counters, self._metadata.__contains__
        )
        self._provider: DiscoveryProvider | None = None
        with ExitStack() as stack:

            def publication(channel: str, stream_id: int) -> _native.Publication:
                opened = _native.Publication(conductor, channel, stream_id)
                stack.callback(opened.close)
                return opened

            def subscription(address: StreamAddress) -> _native.Subscription:
                # Untethered: missed announces are repeated, so publishers need not wait for this one.
                opened = _native.Subscription(conductor, untethered(address.channel), address.stream_id)
                stack.callback(opened.close)
                return opened

            announce = StreamAddress(SHARED_CHANNEL, stream_ids.announce)
            self._publication = publication(announce.channel, announce.stream_id)
            # A registry knows the shared streams only: metadata of streams with their own goes there too.
            shared = dict.fromkeys(stream_ids.metadata_addresses, stream_ids.metadata)
            shared[announce] = announce.stream_id
            self._forwarded = [
                _ForwardedStream(
                    subscription(address),
                    [publication(channel, stream_id) for channel in agent.settings.announce_to],
                )
                for address, stream_id in shared.items()
            ]
            if settings.embedded:
                self._provider = DiscoveryProvider(
                    conductor,
                    self._index,
                    settings.provider,
                    self.counters,
                    aeron_dir=agent.aeron_dir,
                    reserved=_reserved(stream_ids, agent.service_streams),
                    now_ns=now_ns,
                )
                stack.callback(self._provider.close)
            self._stack = stack.pop_all()

    @property
    def is_ready(self) -> bool:
        """Whether all streams are open."""
        return self._publication.is_ready and all(
            forwarded.subscription.is_ready for forwarded in self._forwarded
        )

    def accept(self, message: bytes, now_ns: int) -> bool:
        """Whether a message of the control stream is a discovery request; then it is handled."""
        return self._provider is not None and self._provider.accept(message, now_ns)

    def on_announce(self, action: Announce, now_ns: int) -> None:
        """Indexes a stream that the driver announces, without waiting for the announce itself: a stream must
        be discoverable as soon as a lease is granted."""
        files = action.files
        for message in self._metadata.put(action.stream_id, files.epoch, action.producer_id, now_ns):
            self._publication.offer(message)
            self._updater.on_message(message, now_ns)
        announce = ShmPoolAnnounce(
            stream_id=action.stream_id,
            producer_id=action.producer_id,
            epoch=files.epoch,
            announce_timestamp_ns=now_ns,
            announce_clock_domain=ClockDomain.MONOTONIC,
            layout_version=LAYOUT_VERSION,
            header_nslots=files.nslots,
            header_slot_bytes=HEADER_SLOT_BYTES,
            payload_pools=tuple(
                PayloadPool(
                    pool_id=pool.pool_id,
                    pool_nslots=files.nslots,
                    stride_bytes=pool.stride_bytes,
                    region_uri=pool.uri,
                )
                for pool in files.pools
            ),
            header_region_uri=files.header_uri,
        )
        self._index.on_announce(self._identity.instance_id, announce, now_ns)

    def on_withdraw(self, stream_id: int) -> None:
        """Removes a stream that the driver no longer announces."""
        self._metadata.remove(stream_id)
        self._index.remove(self._identity.instance_id, stream_id)

    def do_work(self, now_ns: int) -> int:
        """Publishes due metadata, indexes and forwards received messages, responds to requests."""
        for message in self._metadata.due(now_ns):
            self._publication.offer(message)
            # Indexed directly too: after a stall, the index must not have streams without names.
            self._updater.on_message(message, now_ns)
        for forwarded in self._forwarded:
            for message in forwarded.subscription.poll(_POLL_LIMIT):
                if self._contradicts_plan(message):
                    self.counters.foreign.add()
                elif self._updater.on_message(message, now_ns):
                    for publication in forwarded.publications:
                        # Lost without a subscriber, and repeated after a period.
                        publication.offer(message)
        return 0 if self._provider is None else self._provider.do_work(now_ns)

    def _contradicts_plan(self, message: bytes) -> bool:
        """Whether another process publishes driver metadata that differs from the plan's."""
        stream_id = read_stream_id(message)
        return (
            stream_id is not None
            and is_driver_metadata(message)
            and not self._metadata.is_own(stream_id, message)
            and not _is_undescribed(message)
        )

    def close(self) -> None:
        """Closes all streams."""
        self._stack.close()


def _is_undescribed(message: bytes) -> bool:
    """Whether it is the announce of a producer without metadata."""
    try:
        return is_undescribed(DataSourceAnnounce.decode(message))
    except CodecError:
        return False


class _ForwardedStream(NamedTuple):
    subscription: _native.Subscription
    publications: list[_native.Publication]


def _reserved(ids: StreamIds, service: ServiceStreams) -> frozenset[int]:
    """Streams that a discovery request must not name for its response. The control stream is allowed."""
    return frozenset((ids.announce, ids.descriptor, ids.qos, ids.metadata, service.control, service.status))
