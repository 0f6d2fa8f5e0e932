"""Discovery inside a driver: it answers for its own streams, on its control stream (discovery §2.1, §13).

It hears its own announces and its producers' metadata like any registry, so that both answer by the same
rules. What it hears it also says again on the channels of registries on other machines. Owned by the agent's
thread.

What a driver says of its streams beside their memory: name, tags and data source id of its plans. Pure.

Producers speak for themselves on the metadata stream. A plan's words go out beside the announces, as metadata
version 0, which no producer has: so registries know them, and no consumer takes them for its frames'.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from .. import _native
from ..attributes.tags import MAX_NAME_BYTES, make_attributes, to_wire, wire_length
from ..discovery.index import DiscoveryIndex, DriverIdentity
from ..discovery.provider import DiscoveryProvider
from ..discovery.state import DiscoveryCounters, IndexUpdater
from ..monitor.reports import is_driver_metadata, read_stream_id
from ..monitor.streams import DRIVER_VERSION
from ..sbe.wire import ClockDomain, DataSourceAnnounce, DataSourceMeta, PayloadPool, ShmPoolAnnounce
from ..transport import StreamIds
from ..transport.channels import ServiceStreams
from .actions import Announce
from .plan import HEADER_SLOT_BYTES, LAYOUT_VERSION, Plan, StreamPlan

if TYPE_CHECKING:
    from .agent import DriverAgent

# A thousand streams that are due at once must not hold up anybody's keepalive.
_MOST_A_TURN: Final = 16


@dataclass(slots=True)
class _PlanMessages:
    plan: StreamPlan | None
    epoch: int
    producer_id: int
    messages: tuple[bytes, ...] = ()


class PlanMetadata:
    """The words of the streams that are announced, each said again after a period."""

    def __init__(self, plan_of: Callable[[int], StreamPlan | None], *, period_ns: int) -> None:
        self._plan_of = plan_of
        self._period_ns = period_ns
        self._said: dict[int, _PlanMessages] = {}
        # In the order in which they fall due: all wait for the same time.
        self._due: deque[tuple[int, int, _PlanMessages]] = deque()

    def __contains__(self, stream_id: int) -> bool:
        return stream_id in self._said

    def is_own(self, stream_id: int, message: bytes) -> bool:
        """Whether words of metadata version 0 are the driver's: its plan's, or another's of a stream of which
        the plan says nothing, as a bridge brings them along."""
        said = self._said.get(stream_id)
        messages = () if said is None else self._messages(stream_id, said)
        return not messages or message in messages

    def put(self, stream_id: int, epoch: int, producer_id: int, now_ns: int) -> tuple[bytes, ...]:
        """A stream is announced under that epoch from now on. Returns what is to be said of it at once."""
        said = self._said[stream_id] = _PlanMessages(None, epoch, producer_id)
        self._due.append((now_ns + self._period_ns, stream_id, said))
        return self._messages(stream_id, said)

    def remove(self, stream_id: int) -> None:
        self._said.pop(stream_id, None)

    def due(self, now_ns: int) -> Iterator[bytes]:
        """What is to be said again; a few streams at a time."""
        for _ in range(_MOST_A_TURN):
            if not self._due or self._due[0][0] > now_ns:
                return
            _, stream_id, said = self._due.popleft()
            if self._said.get(stream_id) is said:
                self._due.append((now_ns + self._period_ns, stream_id, said))
                yield from self._messages(stream_id, said)

    def _messages(self, stream_id: int, said: _PlanMessages) -> tuple[bytes, ...]:
        plan = self._plan_of(stream_id)
        if plan is not said.plan:
            said.plan, said.messages = plan, _encoded(plan, said)
        return said.messages


def _encoded(plan: StreamPlan | None, said: _PlanMessages) -> tuple[bytes, ...]:
    if plan is None or not (plan.name or plan.tags or plan.data_source_id is not None):
        return ()
    name = to_wire(plan.name)
    announce = DataSourceAnnounce(
        stream_id=plan.stream_id,
        producer_id=said.producer_id,
        epoch=said.epoch,
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


_CHANNEL: Final = "aeron:ipc"
# Announces that were missed come again: nobody waits for this reader.
_UNTETHERED: Final = "aeron:ipc?tether=false"
_POLL_LIMIT: Final = 256


class EmbeddedDiscovery:
    """A driver's index and provider, and its voice for names."""

    def __init__(self, agent: DriverAgent, plan: Plan) -> None:
        conductor, stream_ids, period_ns = agent.conductor, agent.stream_ids, agent.announce_period_ns
        now_ns, settings = agent.clock.monotonic_ns(), agent.discovery
        identity = DriverIdentity(agent.settings.instance_id or agent.namespace, _CHANNEL, stream_ids.control)
        self.counters = DiscoveryCounters(instance=identity.instance_id)
        self._identity = identity
        self._index = DiscoveryIndex()
        self._index.set_driver(identity, announce_period_ns=period_ns)
        self._words = PlanMetadata(plan.get, period_ns=period_ns)
        self._updater = IndexUpdater(
            self._index, identity.instance_id, self.counters, self._words.__contains__
        )
        self._provider: DiscoveryProvider | None = None
        with ExitStack() as stack:

            def publication(channel: str, stream_id: int) -> _native.Publication:
                made = _native.Publication(conductor, channel, stream_id)
                stack.callback(made.close)
                return made

            def subscription(stream_id: int) -> _native.Subscription:
                made = _native.Subscription(conductor, _UNTETHERED, stream_id)
                stack.callback(made.close)
                return made

            self._voice = publication(_CHANNEL, stream_ids.announce)
            self._ears = [
                (
                    subscription(stream),
                    [publication(channel, stream) for channel in agent.settings.announce_to],
                )
                for stream in dict.fromkeys((stream_ids.announce, stream_ids.metadata))
            ]
            if settings.embedded:
                self._provider = DiscoveryProvider(
                    conductor,
                    self._index,
                    settings.provider,
                    self.counters,
                    reserved=_reserved(stream_ids, agent.service_streams),
                    now_ns=now_ns,
                )
                stack.callback(self._provider.close)
            self._stack = stack.pop_all()

    @property
    def is_ready(self) -> bool:
        return self._voice.is_ready and all(ear.is_ready for ear, _ in self._ears)

    def accept(self, message: bytes, now_ns: int) -> bool:
        """A message of the control stream: whether it is a question for this provider."""
        return self._provider is not None and self._provider.accept(message, now_ns)

    def announced(self, said: Announce, now_ns: int) -> None:
        """The driver announces a stream, or announces it anew. Known here at once: whoever was granted a
        lease can be found."""
        files = said.files
        for message in self._words.put(said.stream_id, files.epoch, said.producer_id, now_ns):
            self._voice.offer(message)
            self._updater.on_message(message, now_ns)
        announce = ShmPoolAnnounce(
            stream_id=said.stream_id,
            producer_id=said.producer_id,
            epoch=files.epoch,
            announce_timestamp_ns=now_ns,
            announce_clock_domain=ClockDomain.MONOTONIC,
            layout_version=LAYOUT_VERSION,
            header_nslots=files.nslots,
            header_slot_bytes=HEADER_SLOT_BYTES,
            payload_pools=tuple(
                PayloadPool(pool_id=pool_id, pool_nslots=files.nslots, stride_bytes=stride, region_uri=uri)
                for pool_id, stride, uri in files.pools
            ),
            header_region_uri=files.header_uri,
        )
        self._index.on_announce(self._identity.instance_id, announce, now_ns)

    def silenced(self, stream_id: int) -> None:
        """No more announces of it."""
        self._words.remove(stream_id)
        self._index.remove(self._identity.instance_id, stream_id)

    def do_work(self, now_ns: int) -> int:
        for message in self._words.due(now_ns):
            self._voice.offer(message)
            # Not only by way of the stream: after a stall nobody is to find a stream without its name.
            self._updater.on_message(message, now_ns)
        for ear, others in self._ears:
            for message in ear.poll(_POLL_LIMIT):
                if self._is_disputed(message):
                    self.counters.foreign.add()
                elif self._updater.on_message(message, now_ns):
                    for other in others:
                        # Lost where nobody listens; it comes again in a period.
                        other.offer(message)
        return 0 if self._provider is None else self._provider.do_work(now_ns)

    def _is_disputed(self, message: bytes) -> bool:
        """Whether somebody else says what only the driver's own plan has to say."""
        stream_id = read_stream_id(message)
        if stream_id is None or not is_driver_metadata(message):
            return False
        return not self._words.is_own(stream_id, message)

    def close(self) -> None:
        self._stack.close()


def _reserved(ids: StreamIds, service: ServiceStreams) -> frozenset[int]:
    """Streams where an answer would only be in the way. The control stream is where one may ask for it."""
    return frozenset((ids.announce, ids.descriptor, ids.qos, ids.metadata, service.control, service.status))
