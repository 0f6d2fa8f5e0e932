"""Response channels: only allowed endpoints of a client's channel reach Aeron."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorpool.discovery.channels import (
    ResponseRules,
    channel_fault,
    endpoint_of,
    endpoints_fault,
    udp_channel,
)
from tests.unit.discovery.provider_harness import NO_DEADLINE

ALLOWED = ("10.0.0.0/24:40124-40199", "192.168.1.7:5000", "[fd00::/8]:40124", "Viewer.example.org:40124")
RULES = ResponseRules(ALLOWED)


@pytest.mark.parametrize(
    ("requested", "used"),
    [
        ("aeron:ipc", "aeron:ipc"),
        ("aeron:ipc?term-length=1m", "aeron:ipc"),
        ("aeron:ipc?tether=false|alias=me", "aeron:ipc"),
        ("aeron:udp?endpoint=10.0.0.9:40124", "aeron:udp?endpoint=10.0.0.9:40124"),
        ("aeron:udp?endpoint=10.0.0.255:40199|mtu=8k", "aeron:udp?endpoint=10.0.0.255:40199"),
        ("aeron:udp?endpoint=192.168.1.7:5000", "aeron:udp?endpoint=192.168.1.7:5000"),
        ("aeron:udp?endpoint=[fd00::1]:40124", "aeron:udp?endpoint=[fd00::1]:40124"),
        ("aeron:udp?endpoint=viewer.example.org:40124", "aeron:udp?endpoint=viewer.example.org:40124"),
    ],
)
def test_allowed_channel_is_used_without_its_parameters(requested: str, used: str) -> None:
    assert RULES.channel(requested) == used


@pytest.mark.parametrize(
    "requested",
    [
        "",
        "aeron",
        "aeron:",
        "aeron:ipc?term-length",
        "aeron:ipc?endpoint=10.0.0.9:40124",
        "aeron:ipc?session-id=1",
        "aeron:ipc?linger=1h",
        "aeron:ipc?init-term-id=1|term-id=2|term-offset=64",
        "aeron-spy:aeron:udp?endpoint=10.0.0.9:40124",
        "aeron:tcp?endpoint=10.0.0.9:40124",
        "aeron:udp",
        "aeron:udp?endpoint=10.0.0.9",
        "aeron:udp?endpoint=10.0.0.9:0",
        "aeron:udp?endpoint=10.0.0.9:65536",
        "aeron:udp?endpoint=10.0.0.9:40123",
        "aeron:udp?endpoint=10.0.1.9:40124",
        "aeron:udp?endpoint=10.0.0.9:40124|endpoint=8.8.8.8:53",
        "aeron:udp?endpoint=10.0.0.9:40124|control=8.8.8.8:53",
        "aeron:udp?endpoint=10.0.0.9:40124|control=8.8.8.8:53|control-mode=dynamic",
        "aeron:udp?endpoint=10.0.0.9:40124|interface=10.0.0.1",
        "aeron:udp?control-mode=manual",
        "aeron:udp?endpoint=010.0.0.9:40124",
        "aeron:udp?endpoint=0x0a000009:40124",
        "aeron:udp?endpoint=[::ffff:10.0.0.9]:40124",
        "aeron:udp?endpoint=224.0.1.1:40124",
        "aeron:udp?endpoint=evil.example.org:40124",
        "aeron:udp?endpoint=viewer.example.org.:40124",
        "aeron:udp?endpoint=10.0.0.9:40124 ",
        "aeron:udp?endpoint=10.0.0.9:40124\n",
        "aeron:udp?endpoint=10.0.0.9:40124\x00",
        "aeron:udp?endpoint=\N{FULLWIDTH DIGIT ONE}0.0.0.9:40124",
        "aeron:udp?endpoint=10.0.0.9:\N{FULLWIDTH DIGIT FOUR}0124",
        "AERON:IPC",
        "aeron:ipc?alias=" + "x" * 600,
    ],
)
def test_other_channels_are_refused(requested: str) -> None:
    assert RULES.channel(requested) is None


def test_default_rules_allow_ipc_only() -> None:
    rules = ResponseRules()
    assert rules.channel("aeron:ipc") == "aeron:ipc"
    assert rules.channel("aeron:udp?endpoint=127.0.0.1:40124") is None


def test_range_of_all_addresses_excludes_multicast_and_unspecified() -> None:
    rules = ResponseRules(["0.0.0.0/0:1-65535"])
    assert rules.channel("aeron:udp?endpoint=8.8.8.8:53") == "aeron:udp?endpoint=8.8.8.8:53"
    assert rules.channel("aeron:udp?endpoint=224.0.1.1:53") is None
    assert rules.channel("aeron:udp?endpoint=0.0.0.0:53") is None
    multicast = ResponseRules(["224.0.1.0/24:40124"])
    assert multicast.channel("aeron:udp?endpoint=224.0.1.1:40124") == "aeron:udp?endpoint=224.0.1.1:40124"


@NO_DEADLINE
@given(st.text(max_size=80))
def test_no_other_text_is_a_channel(text: str) -> None:
    assert RULES.channel(text) in (None, "aeron:ipc")
    used = RULES.channel(f"aeron:udp?endpoint={text}")
    assert used is None or endpoint_of(used) is not None


@pytest.mark.parametrize(
    ("texts", "part"),
    [
        (["10.0.0.0/24"], "ports"),
        (["10.0.0.1/24:40124"], "host bits"),
        (["10.0.0.0/24:0"], "1 to 65535"),
        (["10.0.0.0/24:9-8"], "lower port first"),
        (["a b:40124"], "neither"),
        (["300.0.0.1:40124"], "neither"),
    ],
)
def test_invalid_endpoints_have_a_fault(texts: list[str], part: str) -> None:
    fault = endpoints_fault(texts)
    assert fault is not None
    assert part in fault


def test_configured_channels_are_checked() -> None:
    for valid in ("aeron:ipc", "aeron:ipc?term-length=1m", "aeron:udp?endpoint=registry.example.org:40123"):
        assert channel_fault(valid) is None
    assert "endpoint" in (channel_fault("aeron:udp") or "")
    assert "aeron:ipc" in (channel_fault("ipc") or "")
    assert udp_channel("::1", 5) == "aeron:udp?endpoint=[::1]:5"
