"""`service:supervisor`: status and manual control of a supervisor. Commands run in the agent's duty cycle.

Every decision, of a rule or of a command, is an event on the status stream with key `decision`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Literal, TypedDict, cast

from ..errors import RequestRejected
from ..monitor.snapshot import MismatchView, to_json
from ..runtime.config import Secret
from ..service import Service, command
from .config import MAX_RATE_HZ, fallback_fault
from .orders import MANUAL
from .policy import Decision

if TYPE_CHECKING:
    from .agent import SupervisorAgent, SupervisorStatus

_MAX_STREAMS = 50
_MAX_REASON = 256


class DecisionReply(TypedDict):
    """A `Decision` as JSON values."""

    action: str
    by: str
    stream_id: int
    consumer_id: int | None
    reason: str
    max_rate_hz: int
    fallback_uri: str
    service: str
    key: str
    value: str


class SupervisedConsumer(TypedDict):
    """A `ConsumerView` as JSON values: the members that `tensorpool supervisor status` shows."""

    consumer_id: int
    mode: str
    rate_hz: float | None
    dropped: dict[str, int]
    backlog: int | None


class SupervisedStream(TypedDict):
    """A `StreamView` as JSON values: the members that `tensorpool supervisor status` shows."""

    stream_id: int
    name: str
    state: str
    consumers: list[SupervisedConsumer]


class SupervisorService(Service, name="supervisor"):
    """Shows a running system and controls its consumers."""

    def __init__(
        self, agent: SupervisorAgent, *, instance: str | None = None, token: Secret | None = None
    ) -> None:
        super().__init__(instance=instance, token=token)
        self._agent = agent

    def publish_decision(self, decision: Decision) -> None:
        """Publishes a decision on the status stream."""
        self._publish("decision", decision)

    def publish_mismatch(self, mismatch: MismatchView) -> None:
        """Publishes a path of the ledger that does not add up."""
        self._publish("mismatch", mismatch)

    def _publish(self, key: str, view: Decision | MismatchView) -> None:
        self.add_event(key, json.dumps(to_json(view)))

    @command(reads=True)
    def status(self) -> SupervisorStatus:
        """Size of the system, rules in force, ledger and counters."""
        return self._agent.status()

    @command(reads=True)
    def streams(self, first: int = 0, limit: int = _MAX_STREAMS) -> list[SupervisedStream]:
        """Streams from the id `first` on, with their producers and consumers."""
        start, maximum = _read_id("first", first), min(_read_id("limit", limit), _MAX_STREAMS)
        streams = [stream for stream in self._agent.latest.streams if stream.stream_id >= start]
        return [cast("SupervisedStream", to_json(stream)) for stream in streams[:maximum]]

    @command(reads=True)
    def decisions(self) -> list[DecisionReply]:
        """The last decisions, oldest first."""
        return [_decision_reply(decision) for decision in self._agent.decisions]

    @command
    def limit(self, stream_id: int, consumer_id: int, max_rate_hz: int, reason: str = "") -> DecisionReply:
        """Limits a consumer to a number of frames a second until it is released."""
        hz = _read_id("max_rate_hz", max_rate_hz)
        if not 0 < hz <= MAX_RATE_HZ:
            raise RequestRejected(f"max_rate_hz {hz}: use a whole number of frames a second, as in 5")
        return self._decide("limit", stream_id, consumer_id, reason, max_rate_hz=hz)

    @command
    def redirect(self, stream_id: int, consumer_id: int, uri: str, reason: str = "") -> DecisionReply:
        """Makes a consumer read from a fallback instead of shared memory until it is released."""
        fault = fallback_fault(str(uri)) if uri else "use a fallback URI, as in bridge://…"
        if fault is not None:
            raise RequestRejected(f"uri {uri!r}: {fault}")
        return self._decide("redirect", stream_id, consumer_id, reason, fallback_uri=uri)

    @command
    def release(self, stream_id: int, consumer_id: int, reason: str = "") -> DecisionReply:
        """Ends the order for a consumer: its own request applies again."""
        return self._decide("release", stream_id, consumer_id, reason)

    def _decide(
        self,
        action: Literal["limit", "redirect", "release"],
        stream_id: object,
        consumer_id: object,
        reason: object,
        *,
        max_rate_hz: int = 0,
        fallback_uri: str = "",
    ) -> DecisionReply:
        if not isinstance(reason, str) or len(reason) > _MAX_REASON:
            raise RequestRejected(f"reason: use a text of up to {_MAX_REASON} characters")
        stream, consumer = _read_id("stream_id", stream_id), _read_id("consumer_id", consumer_id)
        if self._agent.latest.consumer(stream, consumer) is None:
            raise RequestRejected(
                f"stream {stream} has no consumer {consumer}; tensorpool supervisor status lists consumers"
            )
        decision = Decision(
            action,
            MANUAL,
            stream,
            consumer,
            reason or "by hand",
            max_rate_hz=max_rate_hz,
            fallback_uri=fallback_uri,
        )
        self._agent.decide(decision)
        return _decision_reply(decision)


def _decision_reply(decision: Decision) -> DecisionReply:
    return cast("DecisionReply", to_json(decision))


def _read_id(name: str, value: object) -> int:
    if type(value) is int and 0 <= value < 1 << 32:
        return value
    raise RequestRejected(f"{name} {value!r}: use a whole number")
