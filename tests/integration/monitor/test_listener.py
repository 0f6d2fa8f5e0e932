"""The listener: raw observers get the bytes of the chosen streams, and then nothing is decoded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorpool as tp
from tensorpool.monitor.listener import StreamKind, SystemListener
from tensorpool.monitor.reports import read_stream_id
from tensorpool.sbe import QosProducer, ShmPoolAnnounce, decode


class RawMessages:
    """Keeps all messages by the kind of their stream."""

    def __init__(self) -> None:
        self.messages: dict[StreamKind, list[bytes]] = {kind: [] for kind in StreamKind}

    def observe_message(self, kind: StreamKind, message: bytes, now_ns: int) -> None:
        self.messages[kind].append(message)


class Events:
    """Keeps the types of all events."""

    def __init__(self) -> None:
        self.types: set[type] = set()

    def observe(self, event: object, now_ns: int) -> None:
        self.types.add(type(event))


def test_raw_observer_gets_bytes_and_nothing_is_decoded(
    hub: tp.Context, free_stream_id: int, wait_until: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(messages: list[bytes]) -> Any:
        raise AssertionError("a message was decoded")

    raw = RawMessages()
    listener = SystemListener(hub.connection, raw_observers=[raw])
    monkeypatch.setattr(listener._reader, "read_wire", never)
    monkeypatch.setattr(listener._reader, "read_status", never)
    try:
        with hub.producer(free_stream_id, name="camera") as camera:
            camera.offer(np.zeros(1))

            def has_all() -> bool:
                listener.poll()
                return all(raw.messages[kind] for kind in StreamKind if kind is not StreamKind.CONTROL)

            wait_until(has_all, timeout=60)
    finally:
        listener.close()
    assert free_stream_id in map(read_stream_id, raw.messages[StreamKind.ANNOUNCE])
    assert any(isinstance(decode(message), ShmPoolAnnounce) for message in raw.messages[StreamKind.ANNOUNCE])
    assert any(isinstance(decode(message), QosProducer) for message in raw.messages[StreamKind.QOS])


def test_listener_subscribes_to_the_chosen_streams_only(
    hub: tp.Context, free_stream_id: int, wait_until: Callable[..., Any]
) -> None:
    events, raw = Events(), RawMessages()
    kinds = (StreamKind.ANNOUNCE,)
    listener = SystemListener(hub.connection, [events], raw_observers=[raw], streams=kinds)
    try:
        with hub.producer(free_stream_id, name="camera") as camera:
            camera.offer(np.zeros(1))
            wait_until(lambda: listener.poll() and ShmPoolAnnounce in events.types, timeout=60)
    finally:
        listener.close()
    assert {kind for kind, messages in raw.messages.items() if messages} == set(kinds)
