"""A peer as other implementations may be: it keeps to the protocol's words and to none of its habits.

It announces on the control stream, sends a hello at every announce, polls seldom and with tethered
subscriptions, answers late, uses random correlation ids, and leaves out empty text at the end of a message.
"""

from __future__ import annotations

import random
import threading
from typing import Self

import tensorpool as tp
from tensorpool.errors import CodecError
from tensorpool.sbe import (
    DiscoveryRequest,
    ResponseCode,
    Role,
    ShmAttachRequest,
    ShmLeaseKeepalive,
    ShmPoolAnnounce,
    decode,
)
from tensorpool.sbe.driver import ShmAttachResponse
from tensorpool.sbe.wire import ConsumerHello, Mode
from tests.unit.discovery.provider_harness import announce

# It polls ten times a second: enough to hold nobody back, and late by all other measures.
PAUSE_S = 0.1


class ForeignPeer:
    """A peer on a media driver, on its own thread, for one stream of others."""

    def __init__(self, context: tp.Context, stream_id: int, *, seed: int = 1) -> None:
        self._random = random.Random(seed)
        self._stream_id = stream_id
        self._consumer_id = self._random.randrange(1, 1 << 31)
        connection, ids = context.connection, context.stream_ids
        self._control = connection.publication(ids.control)
        self._subscriptions = [
            connection.subscription(shared_id, tethered=True) for shared_id in (ids.control, ids.announce)
        ]
        connection.wait_ready(self._control, *self._subscriptions)
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.announces = 0
        """Announces of the stream that it received."""
        self.sent = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
        self._control.close()
        for subscription in self._subscriptions:
            subscription.close()

    def _run(self) -> None:
        while not self._ends.wait(PAUSE_S):
            for subscription in self._subscriptions:
                for message in subscription.poll(10_000):
                    self._on_message(message)
            self._send(announce(self._random.randrange(1, 1 << 31), epoch=1).encode())
            self._request()

    def _on_message(self, message: bytes) -> None:
        try:
            decoded = decode(message)
        except CodecError:
            return
        if isinstance(decoded, ShmPoolAnnounce) and decoded.stream_id == self._stream_id:
            self.announces += 1
            # It has mapped the regions again.
            self._send(self._hello()[:-8])
            self._send(self._hello())
        elif isinstance(decoded, ShmAttachResponse) and decoded.code == ResponseCode.OK and decoded.lease_id:
            # One keepalive, long after the response, and none after it.
            keepalive = ShmLeaseKeepalive(
                lease_id=decoded.lease_id,
                stream_id=self._stream_id,
                client_id=self._consumer_id,
                role=Role.CONSUMER,
                client_timestamp_ns=1,
            )
            self._send(keepalive.encode())

    def _hello(self) -> bytes:
        return ConsumerHello(
            stream_id=self._stream_id,
            consumer_id=self._consumer_id,
            supports_shm=True,
            supports_progress=False,
            mode=Mode.STREAM,
            expected_layout_version=1,
        ).encode()

    def _request(self) -> None:
        number = self._random.getrandbits(63)
        attach = ShmAttachRequest(
            correlation_id=number,
            stream_id=self._stream_id,
            client_id=self._random.randrange(1, 1 << 31),
            role=self._random.choice([Role.CONSUMER, Role.PRODUCER]),
            expected_layout_version=1,
        )
        self._send(attach.encode())
        discover = DiscoveryRequest(
            request_id=number, client_id=1, response_stream_id=7004, response_channel="aeron:ipc"
        )
        self._send(discover.encode()[:-4])

    def _send(self, message: bytes) -> None:
        self._control.offer(message)
        self.sent += 1
