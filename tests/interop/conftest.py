"""The Java codec server, started once for all tests that use it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interop.java_codec import JavaCodec, build_codec_server


@pytest.fixture(scope="session")
def java_codec() -> Iterator[JavaCodec]:
    """A running codec server."""
    codec = JavaCodec(build_codec_server())
    yield codec
    codec.close()
