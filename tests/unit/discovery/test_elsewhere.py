"""Streams of other machines: what their tags say of the way to them, and which of those ways is taken."""

from __future__ import annotations

import pytest

from tensorpool.attributes.tags import MAX_TAG_BYTES, fallback_uri_of, needs_bridge, tags_fault, to_wire
from tensorpool.bridge import FallbackUri
from tensorpool.context.locate import uri_fault
from tensorpool.discovery import DriverIdentity
from tensorpool.transport import StreamAddress
from tests.unit.discovery.world import PERIOD_NS, World


def uri(payload: str, control: str = "aeron:udp?endpoint=10.0.0.2:40101") -> str:
    return str(FallbackUri("lab", StreamAddress(payload, 3000), StreamAddress(control, 3001), 10_000))


PLAIN = uri("aeron:udp?endpoint=10.0.0.2:40100")


@pytest.mark.parametrize(
    ("tags", "needs", "fallback"),
    [
        ((), False, None),
        (("lab", "reach:bridges", "Reach:bridge", "reach:"), False, None),
        (("lab", "reach:bridge"), True, None),
        (("reach:bridge", f"reach:{PLAIN}"), True, PLAIN),
        ((f"reach:{PLAIN}",), True, PLAIN),
        (("reach:http://example.org",), False, None),
        # The same for everybody who asks, in whatever order the tags come.
        (("reach:bridge://b?x", "reach:bridge://a?x"), True, "bridge://a?x"),
    ],
)
def test_tags_say_whether_a_bridge_is_needed_and_which(
    tags: tuple[str, ...], needs: bool, fallback: str | None
) -> None:
    assert (needs_bridge(tags), fallback_uri_of(tags)) == (needs, fallback)


@pytest.mark.parametrize(
    "payload",
    [
        "aeron:udp?endpoint=10.0.0.2:40100",
        "aeron:udp?endpoint=224.20.30.39:40100|interface=10.0.0.0/24",
        "aeron:udp?endpoint=10.0.0.2:40100|control=10.0.0.1:40100|control-mode=dynamic",
    ],
)
def test_ways_of_a_bridge_are_followed_and_fit_into_a_tag(payload: str) -> None:
    assert uri_fault(uri(payload)) is None
    assert tags_fault([f"reach:{uri(payload, payload)}"]) is None


@pytest.mark.parametrize(
    "wrong",
    [
        "bridge://lab",
        "bridge://lab?payload",
        uri("aeron:ipc"),
        uri("aeron:udp?endpoint=10.0.0.2:40100|so-rcvbuf=4g"),
        uri("aeron:udp?endpoint=10.0.0.2:40100", "aeron:udp?endpoint=10.0.0.2:40101|term-length=1g"),
        uri("file:///etc/passwd"),
        "bridge://[?payload=aeron:udp?endpoint=10.0.0.2:1",
    ],
)
def test_what_a_tag_can_make_a_client_open_is_limited_to_what_a_subscriber_needs(wrong: str) -> None:
    assert uri_fault(wrong) is not None


@pytest.mark.parametrize(
    ("tags", "is_good"),
    [
        ((), True),
        (("a", "é" * 256), True),
        (("é" * 257,), False),
        (("x" * (MAX_TAG_BYTES + 1),), False),
        (("",), False),
        ((" a",), False),
        (("a\n",), False),
        (tuple(map(str, range(65))), False),
    ],
)
def test_tags_of_configurations_are_such_that_they_can_be_found(tags: tuple[str, ...], is_good: bool) -> None:
    assert (tags_fault(tags) is None) == is_good


def test_what_is_said_of_a_driver_holds_for_all_its_streams_beside_their_own_tags() -> None:
    world = World()
    far = DriverIdentity("lab", "aeron:ipc", 1000, (to_wire("reach:bridge"), to_wire("lab")))
    world.index.set_driver(far, announce_period_ns=PERIOD_NS)
    world.add(1, name="camera-1", tags=("lab", "door"))
    world.add(2)
    world.add(1, at="roof")
    assert world.found(tags=("reach:bridge",)) == [1, 2]
    assert world.found(tags=("reach:bridge", "door")) == [1]
    (result,) = world.ask(name="camera-1").results
    assert sorted(one.tag for one in result.tags) == ["door", "lab", "reach:bridge"]
