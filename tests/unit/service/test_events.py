"""Values of events in every format of the wire, to and from Python and numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorpool.errors import CodecError
from tensorpool.sbe.service import EventMessage, Format
from tensorpool.service import Bits, Event, FrameRef
from tensorpool.service.events import decode_value, encode_value

NUMPY = {
    Format.UINT8: "u1",
    Format.INT8: "i1",
    Format.UINT16: "u2",
    Format.INT16: "i2",
    Format.UINT32: "u4",
    Format.INT32: "i4",
    Format.UINT64: "u8",
    Format.INT64: "i8",
    Format.FLOAT32: "f4",
    Format.FLOAT64: "f8",
    Format.BOOLEAN: "?",
}


def round_trip(value: Any) -> Any:
    return Event.decode(Event("service:x", "key", value).encode()).value


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (None, Format.NOTHING),
        (True, Format.BOOLEAN),
        (-5, Format.INT64),
        (2**64 - 1, Format.UINT64),
        (1.5, Format.FLOAT64),
        ("grüß", Format.STRING),
        ("", Format.STRING),
        (b"\x00\xff", Format.BYTES),
        (b"", Format.BYTES),
        (Bits(b"\x0f"), Format.BIT),
        (FrameRef(10000, 2**63, 7), Format.REF),
    ],
)
def test_python_values_are_encoded_in_a_matching_format(value: Any, form: Format) -> None:
    assert encode_value(value).format is form
    assert round_trip(value) == value
    assert type(round_trip(value)) is type(value)


@pytest.mark.parametrize(("form", "code"), NUMPY.items())
def test_numpy_scalars_and_arrays_keep_their_type(form: Format, code: str) -> None:
    scalar = np.dtype(code).type(1)
    assert encode_value(scalar).format is form
    assert round_trip(scalar) == scalar.item()
    array = np.array([0, 1, 1], code)
    back = round_trip(array)
    assert back.dtype == array.dtype
    assert back.tolist() == array.tolist()
    assert round_trip(np.array([], code)).size == 0


def test_byte_order_of_an_array_does_not_matter() -> None:
    assert round_trip(np.array([1, 2], ">i4")).tolist() == [1, 2]


@pytest.mark.parametrize(
    "value", [object(), 2**64, -(2**63) - 1, np.zeros((2, 2)), np.zeros(2, "f2"), [1, 2]]
)
def test_value_without_a_format_is_refused(value: Any) -> None:
    with pytest.raises(CodecError, match=r"EventMessage\.value"):
        encode_value(value)


def event(**fields: Any) -> EventMessage:
    return EventMessage(timestamp_ns=1, correlation_id=2, tag="service:x", key="k", **fields)


@pytest.mark.requirement("service-5.2-1", "service-5.2-2", "service-5.2-3")
def test_frame_ref_uses_only_the_ref_fields() -> None:
    good = event(format=Format.REF, ref_stream_id=1, ref_epoch=2, ref_seq=3)
    assert decode_value(good) == FrameRef(1, 2, 3)
    assert encode_value(FrameRef(1, 2, 3)).value == b""
    for fields in ({}, {"ref_stream_id": 1}, {"ref_stream_id": 1, "ref_epoch": 2}):
        with pytest.raises(CodecError, match="without stream, epoch or sequence"):
            decode_value(event(format=Format.REF, **fields))
    with pytest.raises(CodecError, match="must not have a value"):
        decode_value(event(format=Format.REF, ref_stream_id=1, ref_epoch=2, ref_seq=3, value=b"1:2:3"))
    # Other formats ignore the reference fields.
    assert decode_value(event(format=Format.BYTES, ref_stream_id=1, ref_epoch=2, ref_seq=3)) == b""


@pytest.mark.parametrize(
    ("form", "raw"), [(Format.INT32, b"123"), (Format.STRING, b"\xff"), (Format.FLOAT64, b"x" * 9)]
)
def test_bytes_that_contradict_their_format_are_malformed(form: Format, raw: bytes) -> None:
    with pytest.raises(CodecError):
        decode_value(event(format=form, value=raw))


@pytest.mark.requirement("service-5-1")
@given(st.integers(-(2**63), 2**63 - 1), st.integers(1, 2**64 - 1), st.text(max_size=40))
def test_ids_and_text_round_trip(correlation_id: int, trace_id: int, text: str) -> None:
    sent = Event("service:x", "key", text, correlation_id, trace_id, timestamp_ns=5)
    assert Event.decode(sent.encode()) == sent
