"""The agent of a supervisor: receives messages, evaluates rules, sends orders and publishes its decisions.

It stores nothing and holds no lease. After a restart its model is complete when every endpoint has sent its
messages once; until then the producers keep its orders in force. The agent's thread owns all of it.
"""

from __future__ import annotations

import json
import logging
import os
from collections import deque
from contextlib import ExitStack
from dataclasses import replace
from typing import Final, TypedDict, cast

from .. import _native
from ..clock import SYSTEM_CLOCK, Clock
from ..context import Context
from ..errors import RoleFailed
from ..monitor.listener import SystemListener, model_limits
from ..monitor.model import SharedSnapshot, SystemModel
from ..monitor.reports import Notice
from ..monitor.snapshot import MismatchView, Snapshot, to_json
from ..runtime.config import Config, Secret
from ..runtime.counters import CounterPublisher, CounterSet, CounterSnapshot, counter, counters_by, gauge
from ..sbe.wire import ConsumerConfig, ConsumerConfigR2
from ..service import Event, ServiceAgent
from ..shm.epoch_files import user_name
from ..transport import SHARED_CHANNEL, StreamAddress
from .config import SupervisorSettings
from .orders import Orders
from .policy import Decision, Policy
from .service import SupervisorService

_LOG = logging.getLogger(__name__)
_POLL_NS: Final = 20_000_000
"""Messages are read in batches: polling in every duty cycle would cost more than reading them."""
_MAX_DECISIONS: Final = 256
_MAX_QUEUED: Final = 10_000
_ACTIONS: Final = ("limit", "redirect", "flag", "reconfigure", "release", "unflag")


class SupervisorCounters(CounterSet, name="supervisor"):
    """Counters of a supervisor."""

    received = counter("Messages received.", unit="messages", aeron=True)
    streams = gauge("Streams in the model.", unit="streams", aeron=True)
    consumers = gauge("Consumers in the model.", unit="consumers", aeron=True)
    decisions = counters_by("action", _ACTIONS, "Decisions.", unit="decisions", aeron=True)
    mismatches = counter("Paths whose ledger did not add up.", unit="paths", aeron=True)
    orders = counter("Orders that were sent to consumers.", unit="messages")
    unsent = counter("Messages that could not be sent.", unit="messages")


class ActiveRule(TypedDict):
    """A rule that is in force for a stream or a consumer."""

    rule: str
    stream_id: int
    consumer_id: int | None


class ManualOrder(TypedDict):
    """A consumer with an order that a user gave."""

    stream_id: int
    consumer_id: int


class MismatchReply(TypedDict):
    """A `MismatchView` as JSON values."""

    stream_id: int
    path: str
    who: str
    problem: str


class SupervisorLedger(TypedDict):
    """A `LedgerView` as JSON values."""

    paths: dict[str, int]
    mismatches: list[MismatchReply]


class SupervisorStatus(TypedDict):
    """The answer to `status()` of `service:supervisor`."""

    instance: str
    pid: int
    user: str
    uptime_s: float
    streams: int
    consumers: int
    recorders: int
    bridges: int
    collisions: int
    rules: list[str]
    active: list[ActiveRule]
    manual: list[ManualOrder]
    rejected: dict[str, int]
    ledger: SupervisorLedger | None
    counters: CounterSnapshot


class SupervisorAgent:
    """A supervisor, for a `Runner` or `run_role`."""

    name = "supervisor"

    def __init__(
        self,
        context: Context,
        *,
        settings: SupervisorSettings,
        token: Secret | None = None,
        instance: str = "",
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._connection = context.connection
        self._settings = settings
        self._token = token
        self._instance = instance
        self._clock = clock
        self.counters = SupervisorCounters(instance=instance)
        self.decisions: deque[Decision] = deque(maxlen=_MAX_DECISIONS)
        self._policy = Policy(settings.rules)
        streams = context.per_consumer_streams
        channel = streams.channels[0] if streams.channels else SHARED_CHANNEL
        self._orders = Orders(channel, (streams.descriptor_ids.first, streams.descriptor_ids.last))
        self._model = SystemModel(
            replace(
                model_limits(self._connection),
                max_streams=settings.max_streams,
                max_consumers=settings.max_consumers,
            )
        )
        self._snapshot = SharedSnapshot(self._model, settings.evaluation_period_ns, clock)
        self._mismatches: frozenset[MismatchView] = frozenset()
        self._started_ns = clock.monotonic_ns()
        self._next_poll_ns = self._next_evaluation_ns = 0
        self._queued: deque[tuple[StreamAddress, bytes]] = deque()
        """Encoded orders that are not yet sent, and the control streams of their consumers."""
        self._stack = ExitStack()

    def on_start(self) -> None:
        """Opens the streams."""
        connection, services = self._connection, self._connection.services
        with ExitStack() as stack:
            self._listener = SystemListener(
                connection, (self._model,), limits=self._model.limits, clock=self._clock
            )
            stack.callback(self._listener.close)
            # The listener subscribes to the same streams, so each of them is connected.
            self._control: dict[StreamAddress, _native.Publication] = {}
            for address in connection.stream_ids.control_addresses:
                self._control[address] = connection.publication(address)
                stack.callback(self._control[address].close)
            self._commands = connection.publication(services.control_address)
            stack.callback(self._commands.close)
            self._service = SupervisorService(self, instance=self._instance or None, token=self._token)
            self._service_agent = ServiceAgent(
                self._service, connection.conductor, services, clock=self._clock
            )
            stack.callback(self._service_agent.on_close)
            self._counter_publisher = CounterPublisher(connection.conductor, self.counters, clock=self._clock)
            stack.callback(self._counter_publisher.close)
            self._stack = stack.pop_all()
        _LOG.info("supervisor with %d rules", len(self._settings.rules))

    def is_ready(self) -> bool:
        """Whether the media driver has registered all streams."""
        return self._listener.is_ready and self._service_agent.is_ready()

    def do_work(self) -> int:
        """One duty cycle. Received messages do not count as work: they cause no further work, and would keep
        the idle strategy from idling."""
        now_ns = self._clock.monotonic_ns()
        if now_ns >= self._next_poll_ns:
            self._next_poll_ns = now_ns + _POLL_NS
            with self._snapshot.updating():
                received = self._listener.poll()
            self.counters.received.add(received)
            if not received and (failure := self._listener.failure):
                raise RoleFailed(f"Aeron cannot subscribe: {failure}")
        if now_ns >= self._next_evaluation_ns:
            self._next_evaluation_ns = now_ns + self._settings.evaluation_period_ns
            with self._snapshot.lock:
                self._evaluate(now_ns)
        self._counter_publisher.do_work()
        return self._service_agent.do_work() + self._send()

    def on_reload(self, config: Config) -> None:
        """Applies changed rules."""
        self._settings = config[SupervisorSettings]
        for decision in self._policy.set_rules(self._settings.rules):
            self.decide(decision)

    def on_close(self) -> None:
        """Closes the streams."""
        self._stack.close()

    @property
    def latest(self) -> Snapshot:
        """A recent snapshot, for any thread."""
        return self._snapshot()

    # --- rules and orders

    def _evaluate(self, now_ns: int) -> None:
        view = self._model.view(now_ns)
        self.counters.streams.set(self._model.streams)
        self.counters.consumers.set(self._model.consumers)
        self._publish_mismatches(now_ns)
        for decision in self._policy.evaluate(view, now_ns, self._orders.manual):
            self.decide(decision)
        for order in self._orders.due(view, now_ns):
            self._enqueue(order)

    def _publish_mismatches(self, now_ns: int) -> None:
        """Publishes each mismatch once. The number of missing frames may change all the time, so that paths
        are compared without it."""
        mismatches = self._model.ledger(now_ns).mismatches
        known = {(mismatch.stream_id, mismatch.path, mismatch.who) for mismatch in self._mismatches}
        for mismatch in mismatches:
            if (mismatch.stream_id, mismatch.path, mismatch.who) not in known:
                self.counters.mismatches.add()
                self._service.publish_mismatch(mismatch)
                text = f"{mismatch.path} {mismatch.who}: {mismatch.problem}"
                self._model.observe(Notice("mismatch", mismatch.stream_id, text), now_ns)
                _LOG.error("stream %d: the ledger does not add up: %s", mismatch.stream_id, text)
        self._mismatches = frozenset(mismatches)

    def decide(self, decision: Decision) -> None:
        """Publishes a decision and carries it out."""
        self.decisions.append(decision)
        self.counters.decisions[decision.action].add()
        self._service.publish_decision(decision)
        target = f"stream {decision.stream_id}"
        target += self._consumer_text(decision.stream_id, decision.consumer_id)
        text = f"{decision.action} by {decision.by}: {decision.reason}"
        now_ns = self._clock.monotonic_ns()
        with self._snapshot.lock:
            self._model.observe(Notice("decision", decision.stream_id, f"{target}: {text}"), now_ns)
            view = self._model.view(now_ns)
        _LOG.warning("%s: %s", target, text)
        if decision.action == "reconfigure":
            self._send_command(decision)
            return
        for order in self._orders.apply(decision, view):
            self._enqueue(order)
        if decision.action in ("limit", "redirect"):
            # The order is sent in the next duty cycle, not at the next evaluation of the rules.
            self._next_evaluation_ns = 0

    def _consumer_text(self, stream_id: int, consumer_id: int | None) -> str:
        if consumer_id is None:
            return ""
        consumer = self.latest.consumer(stream_id, consumer_id)
        label = f" ({consumer.label})" if consumer is not None and consumer.label else ""
        return f", consumer {consumer_id}{label}"

    def _enqueue(self, order: ConsumerConfig | ConsumerConfigR2) -> None:
        self.counters.orders.add()
        address = self._connection.stream_ids.control_address_of(order.stream_id)
        self._queued.append((address, order.encode()))
        while len(self._queued) > _MAX_QUEUED:
            self._queued.popleft()
            self.counters.unsent.add()

    def _send(self) -> int:
        """Sends what is queued. A control stream that is full keeps its own orders back, and no others."""
        sent, full = 0, set[StreamAddress]()
        for _ in range(len(self._queued)):
            address, order = self._queued.popleft()
            if address not in full and self._control[address].offer(order) == "sent":
                sent += 1
            else:
                full.add(address)
                self._queued.append((address, order))
        return sent

    def _send_command(self, decision: Decision) -> None:
        """Sends the rule's command to a service; its answer is on the status stream."""
        event = Event(f"service:{decision.service}", decision.key, _command_value(decision), correlation_id=0)
        if self._commands.offer(event.encode(self._clock)) != "sent":
            self.counters.unsent.add()

    def status(self) -> SupervisorStatus:
        """The state of the supervisor, for its service."""
        latest = self.latest
        return {
            "instance": self._instance,
            "pid": os.getpid(),
            "user": user_name(),
            "uptime_s": (self._clock.monotonic_ns() - self._started_ns) / 1e9,
            "streams": len(latest.streams),
            "consumers": sum(len(stream.consumers) for stream in latest.streams),
            "recorders": len(latest.recorders),
            "bridges": len(latest.bridges),
            "collisions": len(latest.collisions),
            "rules": [rule.name for rule in self._settings.rules],
            "active": [
                {"rule": rule, "stream_id": stream_id, "consumer_id": consumer_id}
                for rule, stream_id, consumer_id in self._policy.active
            ],
            "manual": [
                {"stream_id": stream_id, "consumer_id": consumer_id}
                for stream_id, consumer_id in sorted(self._orders.manual)
            ],
            "rejected": dict(latest.rejected),
            "ledger": None if latest.ledger is None else cast("SupervisorLedger", to_json(latest.ledger)),
            "counters": self.counters.snapshot(),
        }


def _command_value(decision: Decision) -> int | float | str | bool:
    """Arguments of a command stay text; the value of a property is parsed as JSON, or else stays text."""
    if decision.key.endswith("()"):
        return decision.value or "{}"
    try:
        value = json.loads(decision.value)
    except ValueError:
        return decision.value
    return value if isinstance(value, int | float | str | bool) else decision.value
