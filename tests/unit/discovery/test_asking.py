"""The client's side: what it sends, what it believes, and how it puts several answers together."""

from __future__ import annotations

import dataclasses
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorpool.discovery import DiscoveredStream, DiscoverySettings, make_filter, merge_results, routes
from tensorpool.discovery.query import PendingQuery, make_request
from tensorpool.discovery.state import error_response
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
from tests.unit.discovery.world import IN_ITS_OWN_TIME, announce


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


def asking(*request_ids: int, **wanted: Any) -> PendingQuery:
    return PendingQuery(make_filter(**wanted), request_ids or (1,))


# --- what is sent


@pytest.mark.requirement("discovery-4.3-1", "discovery-5.1-6", "discovery-15-1", "discovery-15-3")
@pytest.mark.parametrize(("channel", "stream_id"), [("", 7004), ("aeron:ipc", 0), ("aeron:ipc", 1 << 31)])
def test_a_client_never_asks_without_saying_where_the_answer_goes(channel: str, stream_id: int) -> None:
    with pytest.raises(ConfigError):
        make_request(
            make_filter(),
            request_id=1,
            client_id=2,
            response_channel=channel,
            response_stream_id=stream_id,
        )


def test_a_question_has_every_filter_in_it() -> None:
    wanted = make_filter(name="é", tags=["b", "a", "b"], stream_id=3, producer_id=0, data_source_id=5)
    made = make_request(
        wanted, request_id=9, client_id=2, response_channel="aeron:ipc", response_stream_id=7004
    )
    read = DiscoveryRequest.decode(made.encode())
    assert read == made
    assert (read.stream_id, read.producer_id, read.data_source_id) == (3, 0, 5)
    assert read.data_source_name.encode("ascii", "surrogateescape") == "é".encode()
    assert [one.tag for one in read.tags] == ["a", "b"]


@pytest.mark.requirement("discovery-5.0-1")
def test_what_is_not_asked_for_is_null_on_the_wire() -> None:
    made = make_request(
        make_filter(), request_id=1, client_id=2, response_channel="aeron:ipc", response_stream_id=7004
    )
    block = made.encode()[8 : 8 + 32]
    assert struct.unpack_from("<IIQ", block, 16) == (0xFFFF_FFFF, 0xFFFF_FFFF, (1 << 64) - 1)


@pytest.mark.requirement("discovery-5.1-8")
@pytest.mark.parametrize(
    "wrong",
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
def test_what_nobody_can_be_asked_for_is_an_error_here(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        make_filter(**wrong)


def test_one_tag_may_be_given_as_text() -> None:
    assert make_filter(tags="lab").tags == {"lab"}


# --- what is believed


def test_a_result_becomes_a_stream() -> None:
    one = asking()
    one.hear(
        response(
            result(data_source_id=77, tags=(Tag(tag="a"), Tag(tag="B")), data_source_name="\udcc3\udca9")
        )
    )
    (found,) = one.streams()
    assert (found.stream_id, found.epoch, found.nslots, found.pools) == (1, 5, 8, (4096,))
    assert (found.name, set(found.tags), found.data_source_id) == ("é", {"a", "B"}, 77)
    assert found.as_json()["data_source_id"] == "77"
    assert found.as_json()["epoch"] == "5"
    assert str(found) == "stream 1 'é' of driver 'lab'"
    assert found.has_producer
    assert not found.needs_bridge


@pytest.mark.requirement("discovery-5.2-10")
def test_an_answer_to_somebody_else_is_dropped() -> None:
    one = asking(1)
    one.hear(response(result(), request_id=2))
    assert not one.is_answered
    assert one.dropped["request_id"] == 1
    one.hear(response(result()))
    assert one.is_over
    # A second answer under the same id is nobody's any more.
    one.hear(response(result(stream_id=9)))
    assert [found.stream_id for found in one.streams()] == [1]
    assert one.dropped["request_id"] == 2


@pytest.mark.requirement(
    "discovery-5.2-5", "discovery-5.2-6", "discovery-15-5", "discovery-15-6", "discovery-5.2-11"
)
@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"driver_control_channel": ""}, "no_control_channel"),
        ({"driver_control_stream_id": 0}, "no_control_stream"),
        ({"pool_nslots": 4}, "slot_count"),
        ({"header_slot_bytes": 128}, "layout"),
        ({"max_dims": 4}, "layout"),
    ],
)
def test_an_invalid_result_is_ignored_and_the_others_are_not(wrong: dict[str, Any], reason: str) -> None:
    one = asking()
    one.hear(response(result(stream_id=2, **wrong), result(stream_id=3)))
    assert [found.stream_id for found in one.streams()] == [3]
    assert one.dropped[reason] == 1


@pytest.mark.requirement("discovery-5.2-15", "discovery-15-7")
@pytest.mark.parametrize("status", [DiscoveryStatus.ERROR, DiscoveryStatus.NOT_FOUND])
def test_results_that_come_with_error_or_not_found_are_ignored(status: DiscoveryStatus) -> None:
    one = asking()
    one.hear(response(result(), result(stream_id=2), status=status))
    assert one.is_over
    assert one.streams() == []
    assert one.dropped["with_no_result"] == 2


@pytest.mark.requirement("discovery-10-1", "discovery-10-2", "discovery-10-3", "discovery-10-4")
@pytest.mark.parametrize(
    ("at", "value", "reason"), [(6, 2, "version"), (6, 0, "version"), (4, 911, "schema"), (2, 9, "schema")]
)
def test_another_schema_template_or_version_is_rejected_by_the_header(
    at: int, value: int, reason: str
) -> None:
    message = bytearray(response(result()))
    message[at : at + 2] = struct.pack("<H", value)
    one = asking()
    one.hear(bytes(message))
    assert not one.is_answered
    assert one.dropped[reason] == 1


@pytest.mark.requirement("discovery-10-3")
def test_the_version_constant_inside_the_schema_is_not_what_a_client_goes_by(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(DiscoveryResponse, "discovery_schema_version", 99)
    one = asking()
    one.hear(response(result()))
    assert one.is_answered


@pytest.mark.requirement("discovery-5.1-7")
def test_a_result_that_does_not_fit_the_question_is_dropped() -> None:
    one = asking(name="camera-1")
    one.hear(response(result(data_source_name="Camera-1"), result(stream_id=2)))
    assert [found.stream_id for found in one.streams()] == [2]
    one = asking(tags=["a"])
    one.hear(response(result(tags=(Tag(tag="A"),)), result(stream_id=2, tags=(Tag(tag="b"), Tag(tag="a")))))
    assert [found.stream_id for found in one.streams()] == [2]
    assert one.dropped["filter"] == 1


@IN_ITS_OWN_TIME
@given(st.binary(max_size=200))
def test_garbage_on_the_response_stream_never_raises(data: bytes) -> None:
    one = asking()
    one.hear(data)
    one.hear(struct.pack("<HHHH", 9, 2, 910, 1) + struct.pack("<QB", 1, 1) + data)
    assert len(one.request_ids) == 1


@IN_ITS_OWN_TIME
@given(st.data())
def test_broken_answers_never_raise(data: st.DataObject) -> None:
    message = bytearray(response(result(tags=(Tag(tag="x"),))))
    for _ in range(data.draw(st.integers(1, 5))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    one = asking()
    one.hear(bytes(message))
    one.streams()


def test_other_messages_on_the_stream_are_passed_over() -> None:
    one = asking()
    made: ShmPoolAnnounce = announce()
    one.hear(made.encode())
    assert one.dropped["schema"] == 1


# --- several registries


def found(**changes: Any) -> DiscoveredStream:
    one = asking()
    one.hear(response(result(data_source_name="")))
    return dataclasses.replace(one.streams()[0], **changes)


@pytest.mark.requirement("discovery-7-3", "discovery-13-2")
def test_what_several_registries_say_is_put_together_each_stream_once_in_its_newest_epoch() -> None:
    first = [found(epoch=5), found(stream_id=2), found(driver_instance_id="roof")]
    second = [found(epoch=6, name="new"), found(stream_id=2, name="named")]
    merged = merge_results([first, second, first])
    assert [(one.key, one.epoch, one.name) for one in merged] == [
        (("lab", 1), 6, "new"),
        (("lab", 2), 5, "named"),
        (("roof", 1), 5, ""),
    ]


def test_each_registry_is_asked_under_an_id_of_its_own_and_errors_of_some_are_no_error() -> None:
    one = asking(1, 2, 3)
    one.hear(error_response(2, "busy"))
    assert one.open_ids == [1, 3]
    one.hear(response(result(stream_id=4), request_id=3))
    assert one.is_answered
    assert not one.is_over
    one.hear(response(result(stream_id=5), request_id=1))
    assert one.is_over
    assert [found.stream_id for found in one.streams()] == [4, 5]
    assert one.errors == {2: "busy"}


# --- where to ask


@pytest.mark.requirement("discovery-13-1")
def test_without_a_channel_the_driver_is_asked_on_its_control_stream() -> None:
    (route,) = routes(DiscoverySettings(), 1234)
    assert (route.channel, route.stream_id) == ("aeron:ipc", 1234)
    assert (route.response_channel, route.response_stream_id) == ("aeron:ipc", 7004)


def test_all_registries_are_asked_and_answer_where_this_machine_is_reached() -> None:
    settings = DiscoverySettings(
        channel="aeron:udp?endpoint=127.0.0.1:40123",
        replicas=("aeron:udp?endpoint=localhost:40133", "aeron:ipc"),
    )
    first, second, third = routes(settings, 1000)
    assert (first.stream_id, first.response_channel) == (7000, "aeron:udp?endpoint=127.0.0.1:40124")
    assert second.response_channel in ("aeron:udp?endpoint=127.0.0.1:40124", "aeron:udp?endpoint=[::1]:40124")
    assert third.response_channel == "aeron:ipc"
    own = dataclasses.replace(settings, response_channel="aeron:udp?endpoint=127.0.0.1:5")
    assert {one.response_channel for one in routes(own, 1000)} == {"aeron:udp?endpoint=127.0.0.1:5"}


def test_a_registry_that_cannot_be_reached_is_an_error_that_says_what_to_set() -> None:
    settings = DiscoverySettings(channel="aeron:udp?endpoint=nowhere.invalid:40123")
    with pytest.raises(ConfigError, match=r"discovery\.response_channel"):
        routes(settings, 1000)
