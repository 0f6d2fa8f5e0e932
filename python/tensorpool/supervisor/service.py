"""`service:supervisor`: a supervisor as others see and steer it. Commands run in the agent's turns.

Every decision is an event of its own on the status stream, key `decision`, whoever took it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ..errors import RequestRejected
from ..monitor.snapshot import MismatchView, as_json
from ..runtime.config import Secret
from ..service import Service, command
from .config import MAX_RATE_HZ, fallback_fault
from .orders import MANUAL
from .policy import Decision

if TYPE_CHECKING:
    from .agent import SupervisorAgent


class SupervisorService(Service, name="supervisor"):
    """Sees a running system, and steers its consumers."""

    def __init__(
        self, agent: SupervisorAgent, *, instance: str | None = None, token: Secret | None = None
    ) -> None:
        super().__init__(instance=instance, token=token)
        self._agent = agent

    def say(self, decision: Decision) -> None:
        """On the status stream, for whoever wants to know why."""
        self.add_event("decision", json.dumps(as_json(decision)))

    def say_mismatch(self, mismatch: MismatchView) -> None:
        """Likewise, key `mismatch`: frames that nobody accounts for."""
        self.add_event("mismatch", json.dumps(as_json(mismatch)))

    @command
    def status(self) -> dict[str, Any]:
        """The supervisor as a whole."""
        return self._agent.status()

    @command
    def streams(self, first: int = 0, limit: int = 50) -> list[dict[str, Any]]:
        """Streams as they are seen, from the id `first` on, with everybody on them."""
        start, most = _number("first", first), min(_number("limit", limit), 50)
        found = [one for one in self._agent.latest.streams if one.stream_id >= start]
        return [as_json(one) for one in found[:most]]

    @command
    def decisions(self) -> list[dict[str, Any]]:
        """The last ones, oldest first."""
        return [as_json(one) for one in self._agent.decisions]

    @command
    def limit(self, stream_id: int, consumer_id: int, max_rate_hz: int, reason: str = "") -> dict[str, Any]:
        """A consumer gets at most so many frames a second, until it is released."""
        hz = _number("max_rate_hz", max_rate_hz)
        if not 0 < hz <= MAX_RATE_HZ:
            raise RequestRejected(f"max_rate_hz {hz}: use a whole number of frames a second, as in 5")
        return self._order("limit", stream_id, consumer_id, reason, max_rate_hz=hz)

    @command
    def redirect(self, stream_id: int, consumer_id: int, uri: str, reason: str = "") -> dict[str, Any]:
        """A consumer's frames are to come by another way than shared memory, until it is released."""
        fault = fallback_fault(str(uri)) if uri else "name one"
        if fault is not None:
            raise RequestRejected(f"uri {uri!r}: {fault}")
        return self._order("redirect", stream_id, consumer_id, reason, fallback_uri=uri)

    @command
    def release(self, stream_id: int, consumer_id: int, reason: str = "") -> dict[str, Any]:
        """What was ordered for a consumer is over: it is as it wants to be itself."""
        return self._order("release", stream_id, consumer_id, reason)

    def _order(
        self, action: Any, stream_id: Any, consumer_id: Any, reason: Any, **more: Any
    ) -> dict[str, Any]:
        if not isinstance(reason, str) or len(reason) > 256:
            raise RequestRejected("reason: a text of up to 256 characters")
        stream, consumer = _number("stream_id", stream_id), _number("consumer_id", consumer_id)
        if self._agent.latest.consumer(stream, consumer) is None:
            raise RequestRejected(
                f"stream {stream} has no consumer {consumer}; tensorpool supervisor status shows who is there"
            )
        decision = Decision(action, MANUAL, stream, consumer, reason or "by hand", **more)
        self._agent.decide(decision)
        found: dict[str, Any] = as_json(decision)
        return found


def _number(name: str, value: Any) -> int:
    if type(value) is int and 0 <= value < 1 << 32:
        return value
    raise RequestRejected(f"{name} {value!r}: use a whole number")
