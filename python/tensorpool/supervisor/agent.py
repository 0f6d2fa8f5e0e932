"""A supervisor at work: listens, judges, and says what it decided. One thread owns it all.

It keeps nothing on disk and holds no lease: started anew, it has its picture back when everybody has spoken
once, and what it had ordered stands with the producers meanwhile.
"""

from __future__ import annotations

import json
import logging
import os
from collections import deque
from contextlib import ExitStack
from typing import Any, Final

from .. import _native
from ..clock import SYSTEM_CLOCK, Clock
from ..context import Context
from ..errors import RoleFailed
from ..monitor.listener import open_listener
from ..monitor.model import LedgerAudit, SharedSnapshot, SystemModel
from ..monitor.reports import Notice
from ..monitor.snapshot import LedgerView, MismatchView, Snapshot, as_json
from ..monitor.streams import ModelLimits
from ..runtime.config import Config, Secret
from ..runtime.counters import CounterPublisher, CounterSet, counter, counters_by, gauge
from ..sbe.message import Message
from ..service import Event, ServiceAgent
from ..shm.epoch_files import user_name
from .config import SupervisorSettings
from .orders import Orders
from .policy import Decision, Policy
from .service import SupervisorService

_LOG = logging.getLogger(__name__)
_LISTEN_NS: Final = 20_000_000
"""Messages are read in batches: a thousand small turns would cost more than they tell."""
_MOST_DECISIONS: Final = 256
_MOST_WAITING: Final = 10_000
_ACTIONS: Final = ("limit", "redirect", "flag", "reconfigure", "release", "unflag")


class SupervisorCounters(CounterSet, name="supervisor"):
    """What a supervisor has heard and done."""

    heard = counter("Messages heard.", unit="messages", aeron=True)
    streams = gauge("Streams that are known.", unit="streams", aeron=True)
    consumers = gauge("Consumers that are known.", unit="consumers", aeron=True)
    decisions = counters_by("action", _ACTIONS, "Decisions.", unit="decisions", aeron=True)
    mismatches = counter("Paths whose ledger did not fit.", unit="paths", aeron=True)
    orders = counter("Orders that were sent to consumers.", unit="messages")
    unsent = counter("Messages that nobody took.", unit="messages")


class SupervisorAgent:
    """Give it to a `Runner`, or to `run_role`."""

    name = "supervisor"

    def __init__(
        self,
        context: Context,
        *,
        settings: SupervisorSettings,
        token: Secret | None = None,
        instance: str = "",
        audit: LedgerAudit | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._context = context
        self._settings = settings
        self._token = token
        self._instance = instance
        self._clock = clock
        self.counters = SupervisorCounters(instance=instance)
        self.decisions: deque[Decision] = deque(maxlen=_MOST_DECISIONS)
        self._policy = Policy(settings.rules)
        streams = context.per_consumer_streams
        channel = streams.channels[0] if streams.channels else "aeron:ipc"
        self._orders = Orders(channel, (streams.descriptor_ids.first, streams.descriptor_ids.last))
        bounds = ModelLimits(
            announce_period_ns=context.connection.announce_period_ns,
            report_period_ns=context.connection.report_period_ns,
            max_streams=settings.max_streams,
            max_consumers=settings.max_consumers,
        )
        self._picture = SystemModel(bounds, audit)
        self._latest = SharedSnapshot(self._picture, settings.look_ns, clock)
        self._bounds = bounds
        self._mismatches: frozenset[MismatchView] = frozenset()
        self._started_ns = clock.monotonic_ns()
        self._next_listen_ns = self._next_look_ns = 0
        self._waiting: deque[bytes] = deque()
        self._stack = ExitStack()

    def on_start(self) -> None:
        conductor, services = self._context.connection.conductor, self._context.service_streams
        with ExitStack() as stack:
            self._ears = open_listener(self._context, (self._picture,), self._bounds, self._clock)
            stack.callback(self._ears.close)
            control = self._context.stream_ids.control
            self._control = _native.Publication(conductor, "aeron:ipc", control)
            stack.callback(self._control.close)
            self._commands = _native.Publication(conductor, services.channel, services.control)
            stack.callback(self._commands.close)
            self._service = SupervisorService(self, instance=self._instance or None, token=self._token)
            self._service_agent = ServiceAgent(self._service, conductor, services, clock=self._clock)
            stack.callback(self._service_agent.on_close)
            exposure = CounterPublisher(conductor, self.counters, clock=self._clock)
            stack.callback(exposure.close)
            self._exposure = exposure
            self._stack = stack.pop_all()
        _LOG.info("supervisor with %d rules", len(self._settings.rules))

    def is_ready(self) -> bool:
        return self._ears.is_ready and self._service_agent.is_ready()

    def do_work(self) -> int:
        now_ns = self._clock.monotonic_ns()
        if now_ns >= self._next_listen_ns:
            self._next_listen_ns = now_ns + _LISTEN_NS
            with self._latest.listening():
                heard = self._ears.poll()
            self.counters.heard.add(heard)
            if not heard and (why := self._ears.failure):
                raise RoleFailed(f"Aeron cannot listen: {why}")
        if now_ns >= self._next_look_ns:
            self._next_look_ns = now_ns + self._settings.look_ns
            with self._latest.lock:
                self._look(now_ns)
        self._exposure.do_work()
        # Reading leads to nothing that is to be done at once: it must not keep an idle strategy from resting.
        return self._service_agent.do_work() + self._send()

    def on_reload(self, config: Config) -> None:
        """Other rules."""
        self._settings = config[SupervisorSettings]
        for decision in self._policy.set_rules(self._settings.rules):
            self.decide(decision)

    def on_close(self) -> None:
        self._stack.close()

    @property
    def latest(self) -> Snapshot:
        """The picture, a look ago at most; any thread may have it."""
        return self._latest()

    # --- judging and doing

    def _look(self, now_ns: int) -> None:
        picture, orders = self._picture, self._orders
        sight = picture.sight(now_ns)
        self.counters.streams.set(picture.streams)
        self.counters.consumers.set(picture.consumers)
        self._tell_of_mismatches(picture.ledger(now_ns), now_ns)
        for decision in self._policy.judge(sight, now_ns, orders.manual):
            self.decide(decision)
        for order in orders.due(sight, now_ns):
            self._order(order)

    def _tell_of_mismatches(self, ledger: LedgerView | None, now_ns: int) -> None:
        """Each of them once, when it comes."""
        wrong = () if ledger is None else ledger.mismatches
        # How many frames are missing may change all the time; that some are is said once.
        known = {(one.stream_id, one.path, one.who) for one in self._mismatches}
        for one in wrong:
            if (one.stream_id, one.path, one.who) not in known:
                self.counters.mismatches.add()
                self._service.say_mismatch(one)
                text = f"{one.path} {one.who}: {one.problem}"
                self._picture.observe(Notice("mismatch", one.stream_id, text), now_ns)
                _LOG.error("stream %d: the ledger does not fit: %s", one.stream_id, text)
        self._mismatches = frozenset(wrong)

    def decide(self, decision: Decision) -> None:
        """Says it, and sees to it that it is done."""
        self.decisions.append(decision)
        self.counters.decisions[decision.action].add()
        self._service.say(decision)
        who = f"stream {decision.stream_id}"
        who += "" if decision.consumer_id is None else f", consumer {decision.consumer_id}"
        text = f"{decision.action} by {decision.by}: {decision.reason}"
        now_ns = self._clock.monotonic_ns()
        with self._latest.lock:
            self._picture.observe(Notice("decision", decision.stream_id, f"{who}: {text}"), now_ns)
            sight = self._picture.sight(now_ns)
        _LOG.warning("%s: %s", who, text)
        if decision.action == "reconfigure":
            self._command(decision)
            return
        for order in self._orders.take(decision, sight):
            self._order(order)
        # An order goes out now, not at the next look.
        self._next_look_ns = 0 if decision.action in ("limit", "redirect") else self._next_look_ns

    def _order(self, order: Message) -> None:
        self.counters.orders.add()
        self._waiting.append(order.encode())
        while len(self._waiting) > _MOST_WAITING:
            self._waiting.popleft()
            self.counters.unsent.add()

    def _send(self) -> int:
        sent = 0
        while self._waiting and self._control.offer(self._waiting[0]) == "sent":
            self._waiting.popleft()
            sent += 1
        return sent

    def _command(self, decision: Decision) -> None:
        """A service is told what the rule says; what it answers is on the status stream."""
        event = Event(f"service:{decision.service}", decision.key, _value(decision), correlation_id=0)
        if self._commands.offer(event.encode(self._clock)) != "sent":
            self.counters.unsent.add()

    def status(self) -> dict[str, Any]:
        latest = self.latest
        return {
            "instance": self._instance,
            "pid": os.getpid(),
            "user": user_name(),
            "uptime_s": (self._clock.monotonic_ns() - self._started_ns) / 1e9,
            "streams": len(latest.streams),
            "consumers": sum(len(one.consumers) for one in latest.streams),
            "recorders": len(latest.recorders),
            "bridges": len(latest.bridges),
            "collisions": len(latest.collisions),
            "rules": [one.name for one in self._settings.rules],
            "active": [
                {"rule": rule, "stream_id": stream_id, "consumer_id": consumer_id}
                for rule, stream_id, consumer_id in self._policy.active
            ],
            "manual": [{"stream_id": one, "consumer_id": two} for one, two in sorted(self._orders.manual)],
            "unheard": dict(latest.unheard),
            "ledger": None if latest.ledger is None else as_json(latest.ledger),
            "counters": self.counters.snapshot(),
        }


def _value(decision: Decision) -> Any:
    """Arguments of a command stay text; a property is what JSON makes of it, else text."""
    if decision.key.endswith("()"):
        return decision.value or "{}"
    try:
        found = json.loads(decision.value)
    except ValueError:
        return decision.value
    return found if isinstance(found, int | float | str | bool) else decision.value
