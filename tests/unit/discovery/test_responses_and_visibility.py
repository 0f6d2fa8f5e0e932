"""Responses: filters, status, limits, and visibility rules."""

from __future__ import annotations

import struct

import pytest

from tensorpool.discovery import VisibilityRule
from tensorpool.discovery.responses import error_response
from tensorpool.runtime.config import IdRange
from tensorpool.sbe import DiscoveryResponse, DiscoveryStatus, Tag
from tests.unit.discovery.provider_harness import SAMPLE, SECOND_NS, ProviderHarness, request

# --- filters


def test_without_filters_all_streams_are_returned(harness: ProviderHarness) -> None:
    assert harness.found() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({"stream_id": 2}, [2]),
        ({"producer_id": 5}, [1]),
        ({"producer_id": 0}, [2]),
        ({"data_source_id": 72}, [2]),
        ({"name": "camera-1"}, [1]),
        ({"name": "camera"}, []),
        ({"tags": ("lab",)}, [1, 2]),
        ({"tags": ("x",)}, [3]),
    ],
)
def test_each_condition_filters_by_itself(
    harness: ProviderHarness, conditions: dict[str, object], expected: list[int]
) -> None:
    assert harness.found(**conditions) == expected


@pytest.mark.requirement("discovery-5.1-1")
@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({"name": "camera-1", "tags": ("lab",)}, [1]),
        ({"name": "camera-1", "stream_id": 2}, []),
        ({"tags": ("lab",), "producer_id": 5}, [1]),
        ({"tags": ("lab",), "data_source_id": 72, "stream_id": 2, "name": "camera-2", "producer_id": 0}, [2]),
        ({"tags": ("lab",), "data_source_id": 72, "stream_id": 2, "name": "camera-2", "producer_id": 1}, []),
    ],
)
def test_stream_must_meet_all_conditions(
    harness: ProviderHarness, conditions: dict[str, object], expected: list[int]
) -> None:
    assert harness.found(**conditions) == expected


@pytest.mark.requirement("discovery-5.1-9")
def test_stream_must_have_all_requested_tags(harness: ProviderHarness) -> None:
    assert harness.found(tags=("lab", "Calibrated")) == [1]
    assert harness.found(tags=("lab", "calibrated")) == []


@pytest.mark.requirement("discovery-5.1-10")
def test_repeated_tag_counts_once(harness: ProviderHarness) -> None:
    assert harness.found(tags=("lab", "lab", "lab")) == [1, 2]


@pytest.mark.requirement("discovery-5.2-1", "discovery-5.2-2")
def test_result_has_all_tags_with_their_case(harness: ProviderHarness) -> None:
    (result,) = harness.ask(tags=("lab",), stream_id=1).results
    assert {item.tag for item in result.tags} == {"lab", "Calibrated"}


@pytest.mark.requirement("discovery-5.1-7")
@pytest.mark.parametrize("name", ["caméra", "cam\udcffera", " camera", "CAMERA", "cam\x00era"])
def test_names_are_compared_and_returned_by_bytes(name: str) -> None:
    harness = ProviderHarness()
    harness.add(1, name=name)
    harness.add(2, name=name + "x")
    (result,) = harness.ask(name=name).results
    assert result.stream_id == 1
    assert result.data_source_name.encode("ascii", "surrogateescape") == name.encode(
        "utf-8", "surrogateescape"
    )
    assert harness.found(name=name.swapcase()) == ([] if name.swapcase() != name else [1])


@pytest.mark.requirement("discovery-5.0-1", "discovery-5.0-2")
def test_absent_values_are_null_or_empty_and_filter_nothing(harness: ProviderHarness) -> None:
    (result,) = harness.ask(stream_id=4).results
    assert (result.data_source_id, result.data_source_name, result.tags) == (None, "", ())
    reply = harness.reply(stream_id=4)
    assert reply is not None
    assert struct.pack("<Q", (1 << 64) - 1) in reply.message
    # An empty tag and an empty name are no conditions.
    empty = request(name="")
    empty.tags = (Tag(tag=""),)
    assert empty.stream_id is None
    reply = harness.requests.on_message(empty.encode(), harness.now_ns)
    assert reply is not None
    assert len(DiscoveryResponse.decode(reply.message).results) == 4


@pytest.mark.requirement("discovery-5.2-9")
@pytest.mark.parametrize("request_id", [0, 1, (1 << 64) - 1])
def test_response_repeats_the_request_id(harness: ProviderHarness, request_id: int) -> None:
    assert harness.ask(request_id=request_id).request_id == request_id
    # So does a cached response.
    assert harness.ask(request_id=request_id).request_id == request_id
    assert harness.ask(request_id=request_id, response_stream_id=0).request_id == request_id


def test_cached_response_is_replaced_when_the_index_changes(harness: ProviderHarness) -> None:
    first = harness.ask(tags=("lab",), request_id=1)
    second = harness.ask(tags=("lab",), request_id=2)
    assert second.results == first.results
    harness.add(1, epoch=9, name="camera-1", tags=("lab",))
    assert {result.epoch for result in harness.ask(tags=("lab",)).results} == {5, 9}
    harness.advance(3 * SECOND_NS + 1)
    assert harness.found(tags=("lab",)) == []


# --- status


@pytest.mark.requirement("discovery-5.2-12")
def test_empty_result_is_ok_without_rules(harness: ProviderHarness) -> None:
    response = harness.ask(name="nowhere")
    assert (response.status, response.results, response.error_message) == (DiscoveryStatus.OK, (), "")


LAB_ONLY = (VisibilityRule(clients=(IdRange(100, 199),)), VisibilityRule(tags=("lab",), names=("camera-*",)))


@pytest.mark.requirement("discovery-5.2-13", "discovery-12-2", "discovery-5.2-14", "discovery-15-7")
def test_hidden_stream_has_the_response_of_a_missing_one() -> None:
    harness = ProviderHarness(rules=LAB_ONLY)
    for stream in SAMPLE:
        harness.add(**stream)
    assert harness.found(client_id=42) == [1, 2]
    hidden, missing = harness.ask(client_id=42, stream_id=4), harness.ask(client_id=42, stream_id=5)
    assert hidden == missing
    assert (hidden.status, hidden.results) == (DiscoveryStatus.NOT_FOUND, ())
    assert harness.found(client_id=150) == [1, 2, 3, 4]
    assert harness.ask(client_id=150, stream_id=4).status is DiscoveryStatus.OK
    assert harness.ask(client_id=150, stream_id=5).status is DiscoveryStatus.NOT_FOUND


@pytest.mark.requirement("discovery-12-2")
def test_hidden_stream_is_denied_by_an_explicit_policy() -> None:
    harness = ProviderHarness(rules=LAB_ONLY, explicit_denial=True)
    for stream in SAMPLE:
        harness.add(**stream)
    denied = harness.ask(client_id=42, stream_id=4)
    assert (denied.status, denied.results) == (DiscoveryStatus.ERROR, ())
    assert "no rule" in denied.error_message
    assert harness.ask(client_id=42, stream_id=5).status is DiscoveryStatus.NOT_FOUND
    assert harness.found(client_id=42) == [1, 2]
    assert harness.found(client_id=150, stream_id=4) == [4]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (VisibilityRule(), [1, 2, 3, 4]),
        (VisibilityRule(streams=(IdRange(2, 3),)), [2, 3]),
        (VisibilityRule(names=("camera-*",)), [1, 2]),
        (VisibilityRule(names=("*",)), [1, 2, 3, 4]),
        (VisibilityRule(tags=("lab",)), [1, 2]),
        (VisibilityRule(tags=("[lL]*",)), [1, 2, 3]),
        (VisibilityRule(drivers=("ro*",)), []),
        (VisibilityRule(drivers=("la?",), streams=(IdRange(4, 4),)), [4]),
        (VisibilityRule(clients=(IdRange(1, 1),)), []),
        (VisibilityRule(clients=(IdRange(1, 1), IdRange(42, 42)), names=("camera-1",)), [1]),
    ],
)
def test_rule_matches_all_of_its_conditions(rule: VisibilityRule, expected: list[int]) -> None:
    harness = ProviderHarness(rules=(rule,))
    for stream in SAMPLE:
        harness.add(**stream)
    assert harness.found(client_id=42) == expected


@pytest.mark.requirement("discovery-12-1")
def test_client_id_changes_visibility_only() -> None:
    """Any client can use id 150 and sees its streams; the response contains no permission."""
    harness = ProviderHarness(rules=LAB_ONLY)
    harness.add(4)
    first, second = harness.ask(client_id=150), harness.ask(client_id=199)
    assert first.results == second.results
    assert set(DiscoveryResponse.__dataclass_fields__) == {
        "request_id", "status", "results", "error_message", "discovery_schema_version",
    }  # fmt: skip


@pytest.mark.requirement("discovery-5.2-7", "discovery-5.2-14", "discovery-15-7")
def test_more_than_a_thousand_results_are_an_error_with_a_hint() -> None:
    harness = ProviderHarness()
    for stream_id in range(1, 1001):
        harness.add(stream_id)
    assert len(harness.ask().results) == 1000
    harness.add(1001, name="one more")
    response = harness.ask()
    assert (response.status, response.results) == (DiscoveryStatus.ERROR, ())
    assert "1001 streams match" in response.error_message
    assert "narrow the filter" in response.error_message
    assert harness.found(name="one more") == [1001]


def test_only_visible_streams_count_against_the_maximum() -> None:
    harness = ProviderHarness(max_results=2, rules=(VisibilityRule(streams=(IdRange(1, 2),)),))
    for stream_id in range(1, 10):
        harness.add(stream_id)
    assert harness.found() == [1, 2]


@pytest.mark.requirement("discovery-5.2-8")
def test_error_message_has_at_most_1024_bytes() -> None:
    response = DiscoveryResponse.decode(error_response(1, "é" * 5000))
    assert len(response.error_message) == 1024
    assert response.error_message.isascii()
