"""Every message decodes to an equal message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorpool import sbe
from tests.property.sbe.reference_parser import parse
from tests.property.sbe.strategies import KINDS, TIMEOUT_SECONDS, VALID, messages_of

pytestmark = pytest.mark.timeout(TIMEOUT_SECONDS)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_generated_message_survives_encoding_and_decoding(kind):
    @VALID
    @given(messages_of(kind), st.binary(max_size=5))
    def check(message, after):
        encoded = message.encode()
        layout = kind.layout()
        assert kind.decode(encoded) == message
        assert kind.decode(encoded).encode() == encoded
        assert parse(layout, encoded).end == len(encoded)
        # Inside a larger buffer, with something else behind it.
        assert kind.decode_prefix(memoryview(encoded + after)) == (message, len(encoded))
        if layout.has_header:
            assert sbe.decode(bytearray(encoded)) == message
        target = bytearray(b"\xaa" * (len(encoded) + 3))
        assert message.encode_into(target, 2) == len(encoded)
        assert target == b"\xaa\xaa" + encoded + b"\xaa"
        form = sbe.json_form.to_json(message)
        assert sbe.json_form.from_json(form) == message

    check()
