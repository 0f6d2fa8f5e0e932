"""A producer, consumers with wishes, and a bare voice and ear on their streams."""

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


class Wire:
    """Speaks and hears on a stream as anybody could."""

    def __init__(self, context: tp.Context, stream_id: int, wait_until: Callable[..., Any]) -> None:
        self._publication = context.connection.publication(stream_id)
        self._subscription = context.connection.subscription(stream_id, tethered=True)
        self._wait_until = wait_until
        wait_until(lambda: self._publication.is_ready and self._subscription.is_ready)
        self.heard: list[Message] = []

    def say(self, message: Message) -> None:
        self._wait_until(lambda: self._publication.offer(message.encode()) == "sent")

    def listen(self) -> list[Message]:
        for message in self._subscription.poll(256):
            try:
                self.heard.append(decode(message))
            except CodecError:
                continue
        return self.heard

    def find(self, kind: type[Message], **fields: Any) -> Message:
        """Waits for a message of that kind with those fields."""

        def found() -> Message | None:
            for message in self.listen():
                if isinstance(message, kind) and all(getattr(message, k) == v for k, v in fields.items()):
                    return message
            return None

        return self._wait_until(found)

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
def wire(context: tp.Context, wait_until: Callable[..., Any]) -> Iterator[Callable[..., Wire]]:
    """`wire(stream_id)`: the control stream unless another is named."""
    with ExitStack() as stack:

        def make(stream_id: int | None = None) -> Wire:
            made = Wire(context, context.stream_ids.control if stream_id is None else stream_id, wait_until)
            stack.callback(made.close)
            return made

        yield make
