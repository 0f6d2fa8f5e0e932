"""Messages as JSON: conversion both ways, and refusal of invalid forms."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tensorpool import sbe
from tensorpool.errors import CodecError
from tensorpool.sbe.json_form import from_json, to_json

EVENT = sbe.EventMessage(
    timestamp_ns=-1,
    correlation_id=1 << 62,
    format=sbe.Format.BYTES,
    ref_stream_id=5,
    tag="service:camera",
    key="gain",
    value=b"\x00\xff",
)
FORM: dict[str, Any] = {
    "message": "EventMessage",
    "schema": "service-920",
    "fields": {
        "timestamp_ns": "-1",
        "correlation_id": "4611686018427387904",
        "format": "BYTES",
        "pad": {"hex": "000000"},
        "ref_stream_id": 5,
        "ref_epoch": None,
        "ref_seq": None,
        "trace_id": None,
        "tag": "service:camera",
        "key": "gain",
        "value": {"hex": "00ff"},
    },
}


def changed(**fields: object) -> dict[str, object]:
    return {"message": "EventMessage", "fields": {**FORM["fields"], **fields}}


def test_json_form_of_integers_members_and_bytes():
    assert to_json(EVENT) == FORM
    assert from_json(json.loads(json.dumps(FORM))) == EVENT


def test_from_json_accepts_numbers_base64_and_defaults():
    fields = {"timestamp_ns": -1, "correlation_id": "0x4000000000000000", "format": 13}
    fields |= {"ref_stream_id": "5", "tag": "service:camera", "key": "gain", "value": {"base64": "AP8="}}
    assert from_json({"message": "EventMessage", "fields": fields}) == EVENT


def test_groups_bools_and_arrays_convert_both_ways():
    tensor = sbe.TensorHeader(dtype=sbe.Dtype.INT8, major_order=sbe.MajorOrder.ROW, ndims=1, dims=(1,) * 8)
    shown: Any = to_json(tensor)
    assert shown["fields"]["dims"] == [1] * 8
    assert from_json(to_json(tensor)) == tensor
    request = sbe.ShmAttachRequest(
        correlation_id=1, stream_id=2, client_id=3, role=sbe.Role.CONSUMER, require_hugepages=False
    )
    shown = to_json(request)
    assert shown["fields"]["require_hugepages"] is False
    assert from_json(to_json(request)) == request
    links = sbe.TraceLinkSet(stream_id=1, epoch=2, seq=3, trace_id=4, parents=(sbe.TraceParent(trace_id=5),))
    shown = to_json(links)
    assert shown["fields"]["parents"] == [{"trace_id": "5"}]
    assert from_json(to_json(links)) == links


@pytest.mark.parametrize(
    ("form", "expected_text"),
    [
        ([], "expected an object"),
        ({"message": "EventMessage", "fields": {}, "extra": 1}, "unknown key 'extra'"),
        ({"message": "Nothing", "fields": {}}, "no message is called 'Nothing'"),
        ({"fields": {}}, "no message is called None"),
        ({"message": "EventMessage", "schema": "wire-900", "fields": {}}, "belongs to service-920"),
        ({"message": "EventMessage"}, "fields"),
        ({"message": "EventMessage", "fields": {"tag": "x"}}, "a field is missing"),
        (changed(nonsense=1), "EventMessage.nonsense: there is no such field"),
        (changed(timestamp_ns="soon"), "EventMessage.timestamp_ns: expected an integer"),
        (changed(timestamp_ns=1.5), "expected an integer"),
        (changed(timestamp_ns=True), "expected an integer"),
        (changed(timestamp_ns=None), "expected a value"),
        (changed(format="TEXT"), "expected one of NOTHING, UINT8"),
        (changed(format=99), "expected one of"),
        (changed(value="text"), 'expected {"hex"'),
        (changed(value={"hex": "0"}), "bad hex"),
        (changed(value={"base64": "?"}), "bad base64"),
        (changed(tag=5), "EventMessage.tag: expected text"),
        ({"message": "TraceLinkSet", "fields": {"parents": {}}}, "expected a list"),
        ({"message": "TraceLinkSet", "fields": {"parents": [5]}}, "parents[0]: expected an object"),
        ({"message": "TraceLinkSet", "fields": {"parents": [{}]}}, "parents[0]: a field is missing"),
        ({"message": "TensorHeader", "fields": {"dims": [1.5]}}, "expected a list of integers"),
        ({"message": "ConsumerHello", "fields": {"supports_shm": 1}}, "expected true or false"),
    ],
)
def test_invalid_json_form_is_refused_with_the_field(form, expected_text):
    with pytest.raises(CodecError) as caught:
        from_json(form)
    assert expected_text in str(caught.value)
