"""Fallback URIs: the address of frames for a consumer without shared memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorpool.bridge import FallbackUri
from tensorpool.errors import ConfigError
from tensorpool.transport import StreamAddress

VALID = FallbackUri(
    "lab",
    StreamAddress("aeron:udp?endpoint=10.0.0.2:40100|mtu=1408", 3000),
    StreamAddress("aeron:udp?endpoint=10.0.0.2:40101", 3001),
    10_000,
)


def test_fallback_uri_round_trips():
    assert str(VALID).startswith(
        "bridge://lab?payload=aeron%3Audp%3Fendpoint%3D10.0.0.2%3A40100%7Cmtu%3D1408&"
    )
    assert FallbackUri.parse(str(VALID)) == VALID


@pytest.mark.parametrize(
    ("old", "new", "reason"),
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
def test_invalid_fallback_uri_is_refused_with_a_reason(old: str, new: str, reason: str):
    with pytest.raises(ConfigError, match=reason):
        FallbackUri.parse(str(VALID).replace(old, new))


@given(st.text())
def test_arbitrary_text_is_refused(text: str):
    try:
        FallbackUri.parse(text)
    except (ConfigError, ValueError):
        pass
    else:
        pytest.fail("this text is not a fallback URI")
