"""Contexts with a short hello period, and raw messages on their streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import tensorpool as tp
from tensorpool.errors import CodecError
from tensorpool.sbe import decode
from tensorpool.sbe.message import Message

PERIOD_S = 0.2


class RawMessages:
    """Publishes and receives messages on a stream, without a producer or consumer."""

    def __init__(self, context: tp.Context, stream_id: int, wait_until: Callable[..., Any]) -> None:
        self._publication = context.connection.publication(stream_id)
        self._subscription = context.connection.subscription(stream_id, tethered=True)
        self._wait_until = wait_until
        wait_until(lambda: self._publication.is_ready and self._subscription.is_ready)
        self.received: list[Message] = []

    def publish(self, message: Message) -> None:
        """Publishes a message; waits until the stream accepts it."""
        self._wait_until(lambda: self._publication.offer(message.encode()) == "sent")

    def receive(self) -> list[Message]:
        """All decoded messages so far."""
        for message in self._subscription.poll(256):
            try:
                self.received.append(decode(message))
            except CodecError:
                continue
        return self.received

    def find(self, kind: type[Message], **fields: Any) -> Message:
        """The first message of `kind` with these fields; waits for it."""

        def matching() -> Message | None:
            for message in self.receive():
                if isinstance(message, kind) and all(getattr(message, k) == v for k, v in fields.items()):
                    return message
            return None

        return self._wait_until(matching)

    @property
    def is_connected(self) -> bool:
        """Whether the stream has a publication."""
        return self._subscription.is_connected

    def close(self) -> None:
        self._publication.close()
        self._subscription.close()


@pytest.fixture
def options(aeron_dir: Path, shm_base: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("TENSORPOOL_CONTEXT__HELLO_PERIOD", f"{int(PERIOD_S * 1000)}ms")
    return {"aeron_dir": str(aeron_dir), "shm_base_dir": str(shm_base), "announce_period": 5.0}


@pytest.fixture(params=["auto", "standalone"])
def context(options: dict[str, Any], request: pytest.FixtureRequest) -> Iterator[tp.Context]:
    with tp.open(request.param, **options) as ctx:
        yield ctx


@pytest.fixture
def raw_messages(context: tp.Context, wait_until: Callable[..., Any]) -> Iterator[Callable[..., RawMessages]]:
    """`raw_messages(stream_id)`: messages on a stream; without an id, on the control stream."""
    with ExitStack() as stack:

        def open_stream(stream_id: int | None = None) -> RawMessages:
            stream = context.stream_ids.control if stream_id is None else stream_id
            messages = RawMessages(context, stream, wait_until)
            stack.callback(messages.close)
            return messages

        yield open_stream
