"""Questions: what is found by which filter, and who sees what."""

from __future__ import annotations

import struct

import pytest

from tensorpool.discovery import VisibilityRule
from tensorpool.discovery.state import error_response
from tensorpool.runtime.config import IdRange
from tensorpool.sbe import DiscoveryResponse, DiscoveryStatus, Tag
from tests.unit.discovery.world import SAMPLE, SECOND_NS, World, question

# --- filters


def test_without_filters_all_streams_are_returned(world: World) -> None:
    assert world.found() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("wanted", "found"),
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
def test_each_filter_finds_its_own(world: World, wanted: dict[str, object], found: list[int]) -> None:
    assert world.found(**wanted) == found


@pytest.mark.requirement("discovery-5.1-1")
@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"name": "camera-1", "tags": ("lab",)}, [1]),
        ({"name": "camera-1", "stream_id": 2}, []),
        ({"tags": ("lab",), "producer_id": 5}, [1]),
        ({"tags": ("lab",), "data_source_id": 72, "stream_id": 2, "name": "camera-2", "producer_id": 0}, [2]),
        ({"tags": ("lab",), "data_source_id": 72, "stream_id": 2, "name": "camera-2", "producer_id": 1}, []),
    ],
)
def test_several_filters_must_all_fit(world: World, wanted: dict[str, object], found: list[int]) -> None:
    assert world.found(**wanted) == found


@pytest.mark.requirement("discovery-5.1-9")
def test_all_tags_that_are_asked_for_must_be_there(world: World) -> None:
    assert world.found(tags=("lab", "Calibrated")) == [1]
    assert world.found(tags=("lab", "calibrated")) == []


@pytest.mark.requirement("discovery-5.1-10")
def test_a_tag_that_is_named_twice_counts_once(world: World) -> None:
    assert world.found(tags=("lab", "lab", "lab")) == [1, 2]


@pytest.mark.requirement("discovery-5.2-1", "discovery-5.2-2")
def test_a_result_has_all_tags_in_their_own_case(world: World) -> None:
    (result,) = world.ask(tags=("lab",), stream_id=1).results
    assert {one.tag for one in result.tags} == {"lab", "Calibrated"}


@pytest.mark.requirement("discovery-5.1-7")
@pytest.mark.parametrize("name", ["caméra", "cam\udcffera", " camera", "CAMERA", "cam\x00era"])
def test_names_are_found_and_returned_byte_for_byte(name: str) -> None:
    world = World()
    world.add(1, name=name)
    world.add(2, name=name + "x")
    (result,) = world.ask(name=name).results
    assert result.stream_id == 1
    assert result.data_source_name.encode("ascii", "surrogateescape") == name.encode(
        "utf-8", "surrogateescape"
    )
    assert world.found(name=name.swapcase()) == ([] if name.swapcase() != name else [1])


@pytest.mark.requirement("discovery-5.0-1", "discovery-5.0-2")
def test_what_is_absent_is_null_or_empty_and_filters_nothing(world: World) -> None:
    (result,) = world.ask(stream_id=4).results
    assert (result.data_source_id, result.data_source_name, result.tags) == (None, "", ())
    reply = world.reply(stream_id=4)
    assert reply is not None
    assert struct.pack("<Q", (1 << 64) - 1) in reply.message
    # An empty tag and an empty name are not given.
    request = question(name="")
    request.tags = (Tag(tag=""),)
    assert request.stream_id is None
    answered = world.questions.on_message(request.encode(), world.now_ns)
    assert answered is not None
    assert len(DiscoveryResponse.decode(answered.message).results) == 4


@pytest.mark.requirement("discovery-5.2-9")
@pytest.mark.parametrize("request_id", [0, 1, (1 << 64) - 1])
def test_the_answer_repeats_the_request_s_id(world: World, request_id: int) -> None:
    assert world.ask(request_id=request_id).request_id == request_id
    # And so does one that was kept.
    assert world.ask(request_id=request_id).request_id == request_id
    assert world.ask(request_id=request_id, response_stream_id=0).request_id == request_id


def test_a_kept_answer_is_as_good_as_a_new_one(world: World) -> None:
    first = world.ask(tags=("lab",), request_id=1)
    second = world.ask(tags=("lab",), request_id=2)
    assert second.results == first.results
    world.add(1, epoch=9, name="camera-1", tags=("lab",))
    assert {one.epoch for one in world.ask(tags=("lab",)).results} == {5, 9}
    world.pass_time(3 * SECOND_NS + 1)
    assert world.found(tags=("lab",)) == []


# --- status


@pytest.mark.requirement("discovery-5.2-12")
def test_nothing_found_is_ok_where_there_are_no_rules(world: World) -> None:
    answer = world.ask(name="nowhere")
    assert (answer.status, answer.results, answer.error_message) == (DiscoveryStatus.OK, (), "")


LAB_ONLY = (VisibilityRule(clients=(IdRange(100, 199),)), VisibilityRule(tags=("lab",), names=("camera-*",)))


@pytest.mark.requirement("discovery-5.2-13", "discovery-12-2", "discovery-5.2-14", "discovery-15-7")
def test_with_rules_a_hidden_stream_looks_like_a_missing_one() -> None:
    world = World(rules=LAB_ONLY)
    for one in SAMPLE:
        world.add(**one)
    assert world.found(client_id=42) == [1, 2]
    hidden, missing = world.ask(client_id=42, stream_id=4), world.ask(client_id=42, stream_id=5)
    assert hidden == missing
    assert (hidden.status, hidden.results) == (DiscoveryStatus.NOT_FOUND, ())
    assert world.found(client_id=150) == [1, 2, 3, 4]
    assert world.ask(client_id=150, stream_id=4).status is DiscoveryStatus.OK
    assert world.ask(client_id=150, stream_id=5).status is DiscoveryStatus.NOT_FOUND


@pytest.mark.parametrize(
    ("rule", "found"),
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
def test_a_rule_shows_what_fits_all_of_it(rule: VisibilityRule, found: list[int]) -> None:
    world = World(rules=(rule,))
    for one in SAMPLE:
        world.add(**one)
    assert world.found(client_id=42) == found


@pytest.mark.requirement("discovery-5.1-11", "discovery-12-1")
def test_a_client_id_is_anybody_s_and_changes_nothing_but_what_is_seen() -> None:
    """Whoever says 150 sees what 150 sees: the answer holds nothing that would let anybody in."""
    world = World(rules=LAB_ONLY)
    world.add(4)
    first, second = world.ask(client_id=150), world.ask(client_id=199)
    assert first.results == second.results
    assert set(DiscoveryResponse.__dataclass_fields__) == {
        "request_id", "status", "results", "error_message", "discovery_schema_version",
    }  # fmt: skip


@pytest.mark.requirement("discovery-5.2-7", "discovery-5.2-14", "discovery-15-7")
def test_more_than_a_thousand_results_are_an_error_that_says_what_to_do() -> None:
    world = World()
    for stream_id in range(1, 1001):
        world.add(stream_id)
    assert len(world.ask().results) == 1000
    world.add(1001, name="one more")
    answer = world.ask()
    assert (answer.status, answer.results) == (DiscoveryStatus.ERROR, ())
    assert "1001 streams fit" in answer.error_message
    assert "narrow the filter" in answer.error_message
    assert world.found(name="one more") == [1001]


def test_only_what_is_visible_counts_against_the_cap() -> None:
    world = World(max_results=2, rules=(VisibilityRule(streams=(IdRange(1, 2),)),))
    for stream_id in range(1, 10):
        world.add(stream_id)
    assert world.found() == [1, 2]


@pytest.mark.requirement("discovery-5.2-8")
def test_an_error_message_has_at_most_1024_bytes() -> None:
    answer = DiscoveryResponse.decode(error_response(1, "é" * 5000))
    assert len(answer.error_message) == 1024
    assert answer.error_message.isascii()
