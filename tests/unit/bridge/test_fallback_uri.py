"""Where a consumer without shared memory reads its frames."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorpool.bridge import FallbackUri
from tensorpool.errors import ConfigError
from tensorpool.transport import StreamAddress

GOOD = FallbackUri(
    "lab",
    StreamAddress("aeron:udp?endpoint=10.0.0.2:40100|mtu=1408", 3000),
    StreamAddress("aeron:udp?endpoint=10.0.0.2:40101", 3001),
    10_000,
)


def test_it_comes_back_as_it_went():
    assert str(GOOD).startswith(
        "bridge://lab?payload=aeron%3Audp%3Fendpoint%3D10.0.0.2%3A40100%7Cmtu%3D1408&"
    )
    assert FallbackUri.parse(str(GOOD)) == GOOD


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("bridge://", "http://", "use bridge://"),
        ("lab?", "?", "use bridge://"),
        ("&stream=10000", "", "stream is missing"),
        ("stream=10000", "stream=0", "is no stream id"),
        ("stream=10000", "stream=4294967295", "is no stream id"),
        ("payload_stream=3000", "payload_stream=x", "is no stream id"),
        ("aeron%3Audp%3Fendpoint%3D10.0.0.2%3A40101", "file", "is no Aeron UDP channel"),
    ],
)
def test_what_cannot_be_used_is_said(old: str, new: str, why: str):
    with pytest.raises(ConfigError, match=why):
        FallbackUri.parse(str(GOOD).replace(old, new))


@given(st.text())
def test_no_text_makes_it_fail_otherwise(text: str):
    try:
        FallbackUri.parse(text)
    except (ConfigError, ValueError):
        pass
    else:
        pytest.fail("that is no address")
