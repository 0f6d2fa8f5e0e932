"""Queries of a client: requests, checks of responses, merged results, and routes."""

from __future__ import annotations

import dataclasses
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorpool.discovery import DiscoveredStream, DiscoverySettings, make_filter, merge_results, routes
from tensorpool.discovery.client_query import PendingQuery, make_request
from tensorpool.discovery.responses import error_response
from tensorpool.errors import ConfigError
from tensorpool.sbe import (
    DiscoveryRequest,
    DiscoveryResponse,
    DiscoveryResult,
    DiscoveryStatus,
    PayloadPool,
    ShmPoolAnnounce,
    Tag,
)
from tensorpool.transport import StreamAddress
from tests.unit.discovery.provider_harness import NO_DEADLINE, announce

CONTROL = StreamAddress("aeron:ipc", 1000)


def result(**changes: Any) -> DiscoveryResult:
    nslots = changes.pop("pool_nslots", 8)
    fields: dict[str, Any] = {
        "stream_id": 1,
        "producer_id": 7,
        "epoch": 5,
        "layout_version": 1,
        "header_nslots": 8,
        "header_slot_bytes": 256,
        "max_dims": 8,
        "driver_control_stream_id": 1000,
        "payload_pools": (PayloadPool(pool_id=1, pool_nslots=nslots, stride_bytes=4096, region_uri="u"),),
        "data_source_name": "camera-1",
        "driver_instance_id": "lab",
        "driver_control_channel": "aeron:ipc",
    }
    return DiscoveryResult(**{**fields, **changes})


def response(*results: DiscoveryResult, request_id: int = 1, status: int = DiscoveryStatus.OK) -> bytes:
    return DiscoveryResponse(
        request_id=request_id, status=DiscoveryStatus(status), results=results, error_message=""
    ).encode()


def pending_query(*request_ids: int, **conditions: Any) -> PendingQuery:
    return PendingQuery(make_filter(**conditions), request_ids or (1,))


# --- requests


@pytest.mark.requirement("discovery-4.3-1", "discovery-5.1-6", "discovery-15-1", "discovery-15-3")
@pytest.mark.parametrize(("channel", "stream_id"), [("", 7004), ("aeron:ipc", 0), ("aeron:ipc", 1 << 31)])
def test_request_needs_a_response_address(channel: str, stream_id: int) -> None:
    with pytest.raises(ConfigError):
        make_request(
            make_filter(),
            request_id=1,
            client_id=2,
            response_channel=channel,
            response_stream_id=stream_id,
        )


def test_request_contains_every_condition() -> None:
    query = make_filter(name="é", tags=["b", "a", "b"], stream_id=3, producer_id=0, data_source_id=5)
    request = make_request(
        query, request_id=9, client_id=2, response_channel="aeron:ipc", response_stream_id=7004
    )
    read = DiscoveryRequest.decode(request.encode())
    assert read == request
    assert (read.stream_id, read.producer_id, read.data_source_id) == (3, 0, 5)
    assert read.data_source_name.encode("ascii", "surrogateescape") == "é".encode()
    assert [item.tag for item in read.tags] == ["a", "b"]


@pytest.mark.requirement("discovery-5.0-1")
def test_absent_conditions_are_null_on_the_wire() -> None:
    request = make_request(
        make_filter(), request_id=1, client_id=2, response_channel="aeron:ipc", response_stream_id=7004
    )
    block = request.encode()[8 : 8 + 32]
    assert struct.unpack_from("<IIQ", block, 16) == (0xFFFF_FFFF, 0xFFFF_FFFF, (1 << 64) - 1)


@pytest.mark.requirement("discovery-5.1-8")
@pytest.mark.parametrize(
    "invalid",
    [
        {"name": ""},
        {"name": "x" * 257},
        {"name": "é" * 129},
        {"tags": ["a", ""]},
        {"name": "\ud800"},
        {"tags": ["\ud800"]},
        {"stream_id": -1},
        {"stream_id": 0xFFFF_FFFF},
        {"data_source_id": (1 << 64) - 1},
        {"producer_id": True},
    ],
)
def test_invalid_conditions_raise_config_errors(invalid: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        make_filter(**invalid)


def test_single_tag_may_be_a_string() -> None:
    assert make_filter(tags="lab").tags == {"lab"}


# --- responses


def test_result_becomes_a_discovered_stream() -> None:
    pending = pending_query()
    pending.on_response(
        response(
            result(data_source_id=77, tags=(Tag(tag="a"), Tag(tag="B")), data_source_name="\udcc3\udca9")
        )
    )
    (stream,) = pending.streams()
    assert (stream.stream_id, stream.epoch, stream.nslots, stream.pools) == (1, 5, 8, (4096,))
    assert (stream.name, set(stream.tags), stream.data_source_id) == ("é", {"a", "B"}, 77)
    assert stream.to_json()["data_source_id"] == "77"
    assert stream.to_json()["epoch"] == "5"
    assert str(stream) == "stream 1 'é' of driver 'lab'"
    assert stream.has_producer
    assert not stream.needs_bridge


@pytest.mark.requirement("discovery-5.2-10")
def test_response_to_another_request_is_dropped() -> None:
    pending = pending_query(1)
    pending.on_response(response(result(), request_id=2))
    assert not pending.is_answered
    assert pending.dropped["request_id"] == 1
    pending.on_response(response(result()))
    assert pending.is_complete
    # A second response with the same id is dropped, too.
    pending.on_response(response(result(stream_id=9)))
    assert [stream.stream_id for stream in pending.streams()] == [1]
    assert pending.dropped["request_id"] == 2


@pytest.mark.requirement(
    "discovery-5.2-5", "discovery-5.2-6", "discovery-15-5", "discovery-15-6", "discovery-5.2-11"
)
@pytest.mark.parametrize(
    ("invalid", "reason"),
    [
        ({"driver_control_channel": ""}, "no_control_channel"),
        ({"driver_control_stream_id": 0}, "no_control_stream"),
        ({"pool_nslots": 4}, "slot_count"),
        ({"header_slot_bytes": 128}, "layout"),
        ({"max_dims": 4}, "layout"),
    ],
)
def test_invalid_result_is_ignored_without_the_others(invalid: dict[str, Any], reason: str) -> None:
    pending = pending_query()
    pending.on_response(response(result(stream_id=2, **invalid), result(stream_id=3)))
    assert [stream.stream_id for stream in pending.streams()] == [3]
    assert pending.dropped[reason] == 1


@pytest.mark.requirement("discovery-5.2-15", "discovery-15-7")
@pytest.mark.parametrize("status", [DiscoveryStatus.ERROR, DiscoveryStatus.NOT_FOUND])
def test_results_of_error_or_not_found_are_ignored(status: DiscoveryStatus) -> None:
    pending = pending_query()
    pending.on_response(response(result(), result(stream_id=2), status=status))
    assert pending.is_complete
    assert pending.streams() == []
    assert pending.dropped["with_no_result"] == 2


@pytest.mark.requirement("discovery-10-1", "discovery-10-2", "discovery-10-3", "discovery-10-4")
@pytest.mark.parametrize(
    ("at", "value", "reason"), [(6, 2, "version"), (6, 0, "version"), (4, 911, "schema"), (2, 9, "schema")]
)
def test_other_schema_template_or_version_is_rejected_by_the_header(at: int, value: int, reason: str) -> None:
    message = bytearray(response(result()))
    message[at : at + 2] = struct.pack("<H", value)
    pending = pending_query()
    pending.on_response(bytes(message))
    assert not pending.is_answered
    assert pending.dropped[reason] == 1


@pytest.mark.requirement("discovery-10-3")
def test_version_constant_in_the_schema_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(DiscoveryResponse, "discovery_schema_version", 99)
    pending = pending_query()
    pending.on_response(response(result()))
    assert pending.is_answered


@pytest.mark.requirement("discovery-5.1-7")
def test_result_that_does_not_match_the_filter_is_dropped() -> None:
    pending = pending_query(name="camera-1")
    pending.on_response(response(result(data_source_name="Camera-1"), result(stream_id=2)))
    assert [stream.stream_id for stream in pending.streams()] == [2]
    pending = pending_query(tags=["a"])
    pending.on_response(
        response(result(tags=(Tag(tag="A"),)), result(stream_id=2, tags=(Tag(tag="b"), Tag(tag="a"))))
    )
    assert [stream.stream_id for stream in pending.streams()] == [2]
    assert pending.dropped["filter"] == 1


@NO_DEADLINE
@given(st.binary(max_size=200))
def test_query_never_raises_on_any_bytes(data: bytes) -> None:
    pending = pending_query()
    pending.on_response(data)
    pending.on_response(struct.pack("<HHHH", 9, 2, 910, 1) + struct.pack("<QB", 1, 1) + data)
    assert len(pending.request_ids) == 1


@NO_DEADLINE
@given(st.data())
def test_query_never_raises_on_corrupted_responses(data: st.DataObject) -> None:
    message = bytearray(response(result(tags=(Tag(tag="x"),))))
    for _ in range(data.draw(st.integers(1, 5))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    pending = pending_query()
    pending.on_response(bytes(message))
    pending.streams()


def test_other_messages_on_the_stream_are_ignored() -> None:
    pending = pending_query()
    other: ShmPoolAnnounce = announce()
    pending.on_response(other.encode())
    assert pending.dropped["schema"] == 1


# --- several registries


def discovered(**changes: Any) -> DiscoveredStream:
    pending = pending_query()
    pending.on_response(response(result(data_source_name="")))
    return dataclasses.replace(pending.streams()[0], **changes)


@pytest.mark.requirement("discovery-7-3", "discovery-13-2")
def test_merged_results_have_each_stream_once_in_its_newest_epoch() -> None:
    first = [discovered(epoch=5), discovered(stream_id=2), discovered(driver_instance_id="roof")]
    second = [discovered(epoch=6, name="new"), discovered(stream_id=2, name="named")]
    merged = merge_results([first, second, first])
    assert [(stream.key, stream.epoch, stream.name) for stream in merged] == [
        (("lab", 1), 6, "new"),
        (("lab", 2), 5, "named"),
        (("roof", 1), 5, ""),
    ]


def test_errors_of_some_registries_do_not_fail_the_query() -> None:
    pending = pending_query(1, 2, 3)
    pending.on_response(error_response(2, "busy"))
    assert pending.open_ids == [1, 3]
    pending.on_response(response(result(stream_id=4), request_id=3))
    assert pending.is_answered
    assert not pending.is_complete
    pending.on_response(response(result(stream_id=5), request_id=1))
    assert pending.is_complete
    assert [stream.stream_id for stream in pending.streams()] == [4, 5]
    assert pending.errors == {2: "busy"}


# --- routes


@pytest.mark.requirement("discovery-13-1")
def test_default_route_is_the_driver_s_control_stream() -> None:
    (route,) = routes(DiscoverySettings(), StreamAddress("aeron:ipc", 1234))
    assert (route.channel, route.stream_id) == ("aeron:ipc", 1234)
    assert (route.response_channel, route.response_stream_id) == ("aeron:ipc", 7004)


def test_routes_lead_to_all_registries_and_back_to_this_host() -> None:
    settings = DiscoverySettings(
        channel="aeron:udp?endpoint=127.0.0.1:40123",
        replicas=("aeron:udp?endpoint=localhost:40133", "aeron:ipc"),
    )
    first, second, third = routes(settings, CONTROL)
    assert (first.stream_id, first.response_channel) == (7000, "aeron:udp?endpoint=127.0.0.1:40124")
    assert second.response_channel in ("aeron:udp?endpoint=127.0.0.1:40124", "aeron:udp?endpoint=[::1]:40124")
    assert third.response_channel == "aeron:ipc"
    explicit = dataclasses.replace(settings, response_channel="aeron:udp?endpoint=127.0.0.1:5")
    assert {route.response_channel for route in routes(explicit, CONTROL)} == {
        "aeron:udp?endpoint=127.0.0.1:5"
    }


def test_unreachable_registry_is_an_error_with_a_hint() -> None:
    settings = DiscoverySettings(channel="aeron:udp?endpoint=nowhere.invalid:40123")
    with pytest.raises(ConfigError, match=r"discovery\.response_channel"):
        routes(settings, CONTROL)
