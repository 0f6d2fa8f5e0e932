"""Every format of the wire, to and from Python and numpy."""

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


def travel(value: Any) -> Any:
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
def test_python_values_travel_in_the_format_that_fits(value: Any, form: Format) -> None:
    assert encode_value(value).format is form
    assert travel(value) == value
    assert type(travel(value)) is type(value)


@pytest.mark.parametrize(("form", "code"), NUMPY.items())
def test_numpy_scalars_and_arrays_keep_their_type(form: Format, code: str) -> None:
    scalar = np.dtype(code).type(1)
    assert encode_value(scalar).format is form
    assert travel(scalar) == scalar.item()
    array = np.array([0, 1, 1], code)
    back = travel(array)
    assert back.dtype == array.dtype
    assert back.tolist() == array.tolist()
    assert travel(np.array([], code)).size == 0


def test_the_byte_order_of_an_array_does_not_matter() -> None:
    assert travel(np.array([1, 2], ">i4")).tolist() == [1, 2]


@pytest.mark.parametrize(
    "value", [object(), 2**64, -(2**63) - 1, np.zeros((2, 2)), np.zeros(2, "f2"), [1, 2]]
)
def test_what_has_no_format_is_refused_with_the_way_out(value: Any) -> None:
    with pytest.raises(CodecError, match=r"EventMessage\.value"):
        encode_value(value)


def event(**fields: Any) -> EventMessage:
    return EventMessage(timestamp_ns=1, correlation_id=2, tag="service:x", key="k", **fields)


@pytest.mark.requirement("service-5.2-1", "service-5.2-2", "service-5.2-3")
def test_a_ref_names_its_frame_by_the_fields_alone() -> None:
    good = event(format=Format.REF, ref_stream_id=1, ref_epoch=2, ref_seq=3)
    assert decode_value(good) == FrameRef(1, 2, 3)
    assert encode_value(FrameRef(1, 2, 3)).value == b""
    for fields in ({}, {"ref_stream_id": 1}, {"ref_stream_id": 1, "ref_epoch": 2}):
        with pytest.raises(CodecError, match="names no frame"):
            decode_value(event(format=Format.REF, **fields))
    with pytest.raises(CodecError, match="value beside it"):
        decode_value(event(format=Format.REF, ref_stream_id=1, ref_epoch=2, ref_seq=3, value=b"1:2:3"))
    # An empty value of another format is an empty value, whatever the reference fields say.
    assert decode_value(event(format=Format.BYTES, ref_stream_id=1, ref_epoch=2, ref_seq=3)) == b""


@pytest.mark.parametrize(
    ("form", "raw"), [(Format.INT32, b"123"), (Format.STRING, b"\xff"), (Format.FLOAT64, b"x" * 9)]
)
def test_bytes_that_contradict_their_format_are_malformed(form: Format, raw: bytes) -> None:
    with pytest.raises(CodecError):
        decode_value(event(format=form, value=raw))


@pytest.mark.requirement("service-5.2-4", "service-5-1")
@given(st.integers(-(2**63), 2**63 - 1), st.integers(1, 2**64 - 1), st.text(max_size=40))
def test_ids_and_text_come_back_as_they_went(correlation_id: int, trace_id: int, text: str) -> None:
    sent = Event("service:x", "key", text, correlation_id, trace_id, timestamp_ns=5)
    assert Event.decode(sent.encode()) == sent
