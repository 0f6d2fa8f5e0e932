"""Response channels of strangers: what they wrote never reaches Aeron, but for allowed endpoints."""

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
from tests.unit.discovery.world import IN_ITS_OWN_TIME

ALLOWED = ("10.0.0.0/24:40124-40199", "192.168.1.7:5000", "[fd00::/8]:40124", "Viewer.example.org:40124")
RULES = ResponseRules(ALLOWED)


@pytest.mark.parametrize(
    ("asked", "used"),
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
def test_what_is_allowed_is_used_without_what_the_stranger_added(asked: str, used: str) -> None:
    assert RULES.channel(asked) == used


@pytest.mark.parametrize(
    "asked",
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
def test_everything_else_is_refused(asked: str) -> None:
    assert RULES.channel(asked) is None


def test_by_default_answers_stay_on_the_media_driver() -> None:
    rules = ResponseRules()
    assert rules.channel("aeron:ipc") == "aeron:ipc"
    assert rules.channel("aeron:udp?endpoint=127.0.0.1:40124") is None


def test_a_range_of_everything_has_neither_groups_nor_nobody_in_it() -> None:
    rules = ResponseRules(["0.0.0.0/0:1-65535"])
    assert rules.channel("aeron:udp?endpoint=8.8.8.8:53") == "aeron:udp?endpoint=8.8.8.8:53"
    assert rules.channel("aeron:udp?endpoint=224.0.1.1:53") is None
    assert rules.channel("aeron:udp?endpoint=0.0.0.0:53") is None
    groups = ResponseRules(["224.0.1.0/24:40124"])
    assert groups.channel("aeron:udp?endpoint=224.0.1.1:40124") == "aeron:udp?endpoint=224.0.1.1:40124"


@IN_ITS_OWN_TIME
@given(st.text(max_size=80))
def test_nothing_that_is_no_channel_gets_through(text: str) -> None:
    assert RULES.channel(text) in (None, "aeron:ipc")
    used = RULES.channel(f"aeron:udp?endpoint={text}")
    assert used is None or endpoint_of(used) is not None


@pytest.mark.parametrize(
    ("texts", "word"),
    [
        (["10.0.0.0/24"], "ports"),
        (["10.0.0.1/24:40124"], "host bits"),
        (["10.0.0.0/24:0"], "1 to 65535"),
        (["10.0.0.0/24:9-8"], "lower one first"),
        (["a b:40124"], "neither"),
        (["300.0.0.1:40124"], "neither"),
    ],
)
def test_a_wrong_list_of_endpoints_is_refused_with_a_reason(texts: list[str], word: str) -> None:
    fault = endpoints_fault(texts)
    assert fault is not None
    assert word in fault


def test_channels_of_a_configuration_are_checked_too() -> None:
    for good in ("aeron:ipc", "aeron:ipc?term-length=1m", "aeron:udp?endpoint=registry.example.org:40123"):
        assert channel_fault(good) is None
    assert "endpoint" in (channel_fault("aeron:udp") or "")
    assert "aeron:ipc" in (channel_fault("ipc") or "")
    assert udp_channel("::1", 5) == "aeron:udp?endpoint=[::1]:5"
