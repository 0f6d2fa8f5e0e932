"""Events of the control and status streams, and their values as Python and numpy objects (service §5.1).

A number is encoded as one element, a one-dimensional array as its elements; exactly one element decodes to a
number. Events have no shapes: a tensor is published as a frame, and a `FrameRef` names it. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from ..clock import SYSTEM_CLOCK, Clock
from ..errors import CodecError, ConfigError
from ..sbe.service import EventMessage, Format


@dataclass(frozen=True, slots=True)
class FrameRef:
    """A reference to one frame."""

    stream_id: int
    """The stream."""
    epoch: int
    """The epoch."""
    seq: int
    """The sequence."""


@dataclass(frozen=True, slots=True)
class Bits:
    """Packed bits, passed on unchanged."""

    packed: bytes
    """Eight of them in each byte."""


Value: TypeAlias = bool | int | float | str | bytes | Bits | FrameRef | npt.NDArray[Any] | None

_DTYPES: dict[Format, np.dtype[Any]] = {
    Format.UINT8: np.dtype("<u1"),
    Format.INT8: np.dtype("<i1"),
    Format.UINT16: np.dtype("<u2"),
    Format.INT16: np.dtype("<i2"),
    Format.UINT32: np.dtype("<u4"),
    Format.INT32: np.dtype("<i4"),
    Format.UINT64: np.dtype("<u8"),
    Format.INT64: np.dtype("<i8"),
    Format.FLOAT32: np.dtype("<f4"),
    Format.FLOAT64: np.dtype("<f8"),
    Format.BOOLEAN: np.dtype("?"),
}
_FORMATS = {dtype: form for form, dtype in _DTYPES.items()}


ALL_SERVICES = "services"
"""A tag of every service. Only commands that change nothing are accepted on it."""

ERROR = ".error"
"""Suffix of the key of a rejection; never part of an echo."""
FAILED = ".failed"
"""Suffix of the key of a reply after an accepted command has failed."""
RESULT = ".result"
"""Suffix of the key of a command's result."""
READ = ".read"
"""Suffix of the key of the echo of a request that changed nothing."""
LOST = "(lost)"
"""Key of the event that reports how many events a service could not publish, or a watching client missed."""


class EventKind(StrEnum):
    """The part of an event of the status stream in the record of accepted commands."""

    CHANGE = "change"
    """An accepted command or value, or a property that the service changed by itself."""
    READ = "read"
    """An accepted request that changed nothing."""
    RESULT = "result"
    """The result of an accepted command."""
    FAILED = "failed"
    """The failure of an accepted command."""
    REJECTED = "rejected"
    """A request that was not accepted."""
    LOST = "lost"
    """Events that are missing here."""


_KIND_BY_SUFFIX: Final = {
    READ: EventKind.READ,
    RESULT: EventKind.RESULT,
    FAILED: EventKind.FAILED,
    ERROR: EventKind.REJECTED,
}


def kind_of_key(key: str) -> EventKind:
    """The kind of an event of the status stream, by its key."""
    if key == LOST:
        return EventKind.LOST
    suffix = key[key.rfind(".") :] if "." in key else ""
    return _KIND_BY_SUFFIX.get(suffix, EventKind.CHANGE)


@dataclass(frozen=True, slots=True)
class Encoded:
    """The fields of an `EventMessage` that represent a value."""

    format: Format
    value: bytes = b""
    ref: FrameRef | None = None


def encode_value(value: Value | np.generic) -> Encoded:
    """The encoded form of a Python or numpy value. Raises CodecError for a value without a format."""
    match value:
        case None:
            return Encoded(Format.NOTHING)
        case np.generic():
            return _encode_array(np.asarray(value))
        case np.ndarray():
            return _encode_array(value)
        case bool():
            return Encoded(Format.BOOLEAN, bytes([value]))
        case int():
            return _encode_int(value)
        case float():
            return _encode_array(np.asarray(value, "<f8"))
        case str():
            return Encoded(Format.STRING, _utf8(value))
        case bytes():
            return Encoded(Format.BYTES, value)
        case Bits():
            return Encoded(Format.BIT, value.packed)
        case FrameRef():
            return Encoded(Format.REF, ref=value)
    raise _unsupported(f"a {type(value).__name__} has no format; send JSON text, or bytes")


def _utf8(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise _unsupported(f"text that is not UTF-8: {error}") from None


def _encode_int(value: int) -> Encoded:
    for form in (Format.INT64, Format.UINT64):
        limits = np.iinfo(_DTYPES[form])
        if limits.min <= value <= limits.max:
            return Encoded(form, np.asarray(value, _DTYPES[form]).tobytes())
    raise _unsupported(f"{value} does not fit 64 bits")


def _encode_array(array: npt.NDArray[Any]) -> Encoded:
    form = _FORMATS.get(array.dtype.newbyteorder("<"))
    if form is None:
        raise _unsupported(f"arrays of {array.dtype} have no format; convert with astype()")
    if array.ndim > 1:
        raise _unsupported(
            f"an array of {array.ndim} dimensions; send array.ravel(), or a frame and its FrameRef"
        )
    return Encoded(form, array.astype(_DTYPES[form], copy=False).tobytes())


def _unsupported(reason: str) -> CodecError:
    return CodecError(reason, message_name="EventMessage", field="value")


def decode_value(event: EventMessage) -> Value:
    """The value of an event. Raises CodecError where format and bytes contradict each other."""
    form, raw = event.format, event.value
    if form is Format.NOTHING:
        return None
    if form is Format.REF:
        return _decode_ref(event)
    if form is Format.STRING:
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise _unsupported(f"text that is not UTF-8: {error}") from None
    if form is Format.BYTES:
        return raw
    if form is Format.BIT:
        return Bits(raw)
    dtype = _DTYPES[form]
    if len(raw) % dtype.itemsize:
        raise _unsupported(f"{len(raw)} bytes are not a whole number of {form.name} elements")
    array = np.frombuffer(raw, dtype)
    if array.size != 1:
        return array
    element: bool | int | float = array[0].item()
    return element


def _decode_ref(event: EventMessage) -> FrameRef:
    # Only the fields name the frame; a value could contradict them.
    if event.ref_stream_id is None or event.ref_epoch is None or event.ref_seq is None:
        raise _unsupported("a REF without stream, epoch or sequence")
    if event.value:
        raise _unsupported("a REF must not have a value")
    return FrameRef(event.ref_stream_id, event.ref_epoch, event.ref_seq)


def service_tag(name: str, instance: str | None = None) -> str:
    """The tag `service:<name>` or `service:<name>:<instance>` (service §7)."""
    for part in (name, instance):
        if part is not None and (not part or not part.isascii() or not part.isprintable() or ":" in part):
            raise ConfigError(f"service name {part!r}: use visible ASCII without ':', as in 'recorder'")
    return f"service:{name}" if instance is None else f"service:{name}:{instance}"


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `correlation_id` 0: the event is not a reply to a request."""

    tag: str
    """Tag of the service that sent it."""
    key: str
    """What it is about: a property, or a command."""
    value: Value
    """The new value or the result."""
    correlation_id: int = 0
    """That of the request that it is a reply to; 0: none."""
    trace_id: int | None = None
    """The trace of the request; None if it has none."""
    timestamp_ns: int = 0
    """When it was sent, in nanoseconds since 1970."""

    @property
    def kind(self) -> EventKind:
        """What the event is, on the status stream."""
        return kind_of_key(self.key)

    def encode(self, clock: Clock = SYSTEM_CLOCK) -> bytes:
        """The event as bytes. An event without a timestamp gets the time of day."""
        encoded = encode_value(self.value)
        ref = encoded.ref
        return EventMessage(
            timestamp_ns=self.timestamp_ns or clock.wall_ns(),
            correlation_id=self.correlation_id,
            format=encoded.format,
            ref_stream_id=None if ref is None else ref.stream_id,
            ref_epoch=None if ref is None else ref.epoch,
            ref_seq=None if ref is None else ref.seq,
            trace_id=self.trace_id,
            tag=self.tag,
            key=self.key,
            value=encoded.value,
        ).encode()

    @classmethod
    def decode(cls, message: bytes) -> Event:
        """The event of a message. Raises CodecError for any other message."""
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
