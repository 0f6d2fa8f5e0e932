"""Bytes of a terminal as keys."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorpool.top.keyboard import (
    BACK_TAB,
    BACKSPACE,
    DOWN,
    ENTER,
    ESCAPE,
    INTERRUPT,
    PAGE_DOWN,
    TAB,
    TO_END,
    TO_START,
    UP,
    KeyDecoder,
)

CASES = [
    (b"\x1b[A\x1bOB", [UP, DOWN]),
    (b"\x1b[6~\x1b[H\x1bOF", [PAGE_DOWN, TO_START, TO_END]),
    (b"q/\r\n\x7f\x08\t\x1b[Z\x03", ["q", "/", ENTER, ENTER, BACKSPACE, BACKSPACE, TAB, BACK_TAB, INTERRUPT]),
    ("é→😀".encode(), ["é", "→", "😀"]),
    (b"\x1b[1;5A\x1b[99~x", ["x"]),
    (b"\x1bx\x01y", ["y"]),
    (b"\xffz", ["z"]),
]


@pytest.mark.parametrize(("sent", "keys"), CASES)
def test_bytes_become_keys(sent: bytes, keys: list[str]) -> None:
    assert KeyDecoder().feed(sent) == keys


@settings(deadline=None)
@given(st.sampled_from(CASES), st.data())
def test_sequences_that_arrive_in_parts_give_the_same_keys(
    case: tuple[bytes, list[str]], data: st.DataObject
) -> None:
    sent, keys = case
    cut = data.draw(st.integers(0, len(sent)))
    decoder = KeyDecoder()
    assert decoder.feed(sent[:cut]) + decoder.feed(sent[cut:]) == keys
    assert not decoder.is_waiting


def test_lone_escape_is_a_key_when_nothing_follows() -> None:
    decoder = KeyDecoder()
    assert decoder.feed(b"\x1b") == []
    assert decoder.is_waiting
    assert decoder.settle() == [ESCAPE]
    assert decoder.feed(b"\x1b[") == []
    assert decoder.settle() == []
    assert decoder.feed(b"a") == ["a"]


@settings(deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=8))
def test_any_bytes_are_decoded_within_bounds(parts: list[bytes]) -> None:
    decoder = KeyDecoder()
    for part in parts:
        for key in decoder.feed(part):
            assert key
    assert decoder.waiting_bytes < 32
