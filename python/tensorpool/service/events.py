"""Events: what travels on the control and status streams, in Python's words."""

from __future__ import annotations

from dataclasses import dataclass

from ..clock import SYSTEM_CLOCK, Clock
from ..errors import CodecError, ConfigError
from ..sbe.service import EventMessage
from .values import Value, decode_value, encode_value

ALL_SERVICES = "services"
"""A tag that every service listens to; only questions that change nothing are answered on it."""

ERROR = ".error"
"""Ends the key of an answer that refuses; never part of an echo."""
FAILED = ".failed"
"""Ends the key of the answer when an accepted command went wrong."""
RESULT = ".result"
"""Ends the key of what a command gave back."""
LOST = "(lost)"
"""The key by which a watcher tells itself how many events it missed."""


def service_tag(name: str, instance: str | None = None) -> str:
    """`service:<name>` or `service:<name>:<instance>` (service §7)."""
    for part in (name, instance):
        if part is not None and (not part or not part.isascii() or not part.isprintable() or ":" in part):
            raise ConfigError(f"service name {part!r}: use visible ASCII without ':', as in 'recorder'")
    return f"service:{name}" if instance is None else f"service:{name}:{instance}"


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `correlation_id` 0: nobody asked; the service speaks for itself."""

    tag: str
    key: str
    value: Value
    correlation_id: int = 0
    trace_id: int | None = None
    timestamp_ns: int = 0

    def encode(self, clock: Clock = SYSTEM_CLOCK) -> bytes:
        """The bytes of it, stamped with the time of day if it has none yet."""
        part = encode_value(self.value)
        ref = part.ref
        return EventMessage(
            timestamp_ns=self.timestamp_ns or clock.wall_ns(),
            correlation_id=self.correlation_id,
            format=part.format,
            ref_stream_id=None if ref is None else ref.stream_id,
            ref_epoch=None if ref is None else ref.epoch,
            ref_seq=None if ref is None else ref.seq,
            trace_id=self.trace_id,
            tag=self.tag,
            key=self.key,
            value=part.value,
        ).encode()

    @classmethod
    def decode(cls, message: bytes) -> Event:
        """Raises CodecError for what is no event."""
        event = EventMessage.decode(message)
        if not event.tag or not event.key:
            raise CodecError("an event needs a tag and a key", message_name="EventMessage", field="tag")
        return cls(
            tag=event.tag,
            key=event.key,
            value=decode_value(event),
            correlation_id=event.correlation_id,
            trace_id=event.trace_id,
            timestamp_ns=event.timestamp_ns,
        )
