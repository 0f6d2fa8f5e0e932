"""Tags of streams on other hosts: whether a bridge is needed, and which fallback URIs are followed."""

from __future__ import annotations

import pytest

from tensorpool.attributes.tags import MAX_TAG_BYTES, fallback_uri_of, needs_bridge, tags_fault, to_wire
from tensorpool.bridge import FallbackUri
from tensorpool.context.locate import uri_fault
from tensorpool.discovery.index import DriverIdentity
from tensorpool.transport import StreamAddress
from tests.unit.discovery.provider_harness import PERIOD_NS, ProviderHarness


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
        # The same URI for every client, whatever the order of tags.
        (("reach:bridge://b?x", "reach:bridge://a?x"), True, "bridge://a?x"),
    ],
)
def test_tags_determine_the_bridge_and_its_fallback_uri(
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
def test_fallback_uris_of_a_bridge_are_valid_and_fit_a_tag(payload: str) -> None:
    assert uri_fault(uri(payload)) is None
    assert tags_fault([f"reach:{uri(payload, payload)}"]) is None


@pytest.mark.parametrize(
    "invalid",
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
def test_fallback_uri_with_other_parameters_is_refused(invalid: str) -> None:
    assert uri_fault(invalid) is not None


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
def test_configured_tags_are_limited_in_form_and_number(tags: tuple[str, ...], is_good: bool) -> None:
    assert (tags_fault(tags) is None) == is_good


def test_driver_s_tags_are_added_to_all_its_streams() -> None:
    harness = ProviderHarness()
    far = DriverIdentity("lab", "aeron:ipc", 1000, (to_wire("reach:bridge"), to_wire("lab")))
    harness.index.set_driver(far, announce_period_ns=PERIOD_NS)
    harness.add(1, name="camera-1", tags=("lab", "door"))
    harness.add(2)
    harness.add(1, at="roof")
    assert harness.found(tags=("reach:bridge",)) == [1, 2]
    assert harness.found(tags=("reach:bridge", "door")) == [1]
    (result,) = harness.ask(name="camera-1").results
    assert sorted(item.tag for item in result.tags) == ["door", "lab", "reach:bridge"]
