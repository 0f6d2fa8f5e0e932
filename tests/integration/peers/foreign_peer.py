"""A peer as other implementations may be: it follows the protocol, and has none of our habits.

It announces on the control stream and maps the regions again at every announce. It polls announces ten times
a second and the control stream rarely, or never, with tethered subscriptions. It answers late, uses random
correlation ids, and leaves out empty text at the end of a message.
"""

from __future__ import annotations

import mmap
import os
import random
import struct
import threading
import time
from collections import deque
from typing import Self

import tensorpool as tp
from tensorpool import _native
from tensorpool.errors import CodecError
from tensorpool.sbe import (
    MAGIC,
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

# It polls announces ten times a second: enough to hold no publication back, and late by all other measures.
PAUSE_S = 0.1
# It polls the control stream only once in this many turns: more than a second passes in between.
CONTROL_TURNS = 12
# Messages with invented ids in each turn.
INVENTED = 20
LATE_S = 1.0


class ForeignPeer:
    """A peer on a media driver, on its own thread, for one stream of others."""

    def __init__(
        self, context: tp.Context, stream_id: int, *, seed: int = 1, polls_control: bool = True
    ) -> None:
        """`polls_control`: without it the control stream is full after a while, for all clients."""
        self._random = random.Random(seed)
        self._polls_control = polls_control
        self._stream_id = stream_id
        self._consumer_id = self._random.randrange(1, 1 << 31)
        connection, ids = context.connection, context.stream_ids
        self._publication = connection.publication(ids.control)
        self._control = connection.subscription(ids.control, tethered=True)
        self._announces = connection.subscription(ids.announce, tethered=True)
        connection.wait_ready(self._publication, self._control, self._announces)
        self._mappings: list[mmap.mmap] = []
        self._late: deque[tuple[float, bytes]] = deque()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.error: BaseException | None = None
        self.announces = 0
        """Announces of the stream that it received."""
        self.remaps = 0
        """How often it has mapped all regions of the stream."""
        self.control_polls = 0
        self.sent = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
        self._unmap()
        for handle in (self._publication, self._control, self._announces):
            handle.close()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            turn = 0
            while not self._ends.wait(PAUSE_S):
                turn += 1
                self._poll(self._announces)
                if self._polls_control and turn % CONTROL_TURNS == 0:
                    self.control_polls += 1
                    self._poll(self._control)
                for _ in range(INVENTED):
                    self._send(announce(self._random.randrange(1, 1 << 31), epoch=1).encode())
                    self._send(self._hello(self._random.randrange(1, 1 << 31)))
                self._request()
                while self._late and self._late[0][0] <= time.monotonic():
                    self._send(self._late.popleft()[1])
        except BaseException as error:
            self.error = error

    def _poll(self, subscription: _native.Subscription) -> None:
        for message in subscription.poll(10_000):
            self._on_message(message)

    def _on_message(self, message: bytes) -> None:
        try:
            decoded = decode(message)
        except CodecError:
            return
        if isinstance(decoded, ShmPoolAnnounce) and decoded.stream_id == self._stream_id:
            self.announces += 1
            self._remap(decoded)
            self._send(self._hello(self._consumer_id)[:-8])
            self._send(self._hello(self._consumer_id))
        elif isinstance(decoded, ShmAttachResponse) and decoded.code == ResponseCode.OK and decoded.lease_id:
            # One keepalive, long after the response, and none after it.
            keepalive = ShmLeaseKeepalive(
                lease_id=decoded.lease_id,
                stream_id=self._stream_id,
                client_id=self._consumer_id,
                role=Role.CONSUMER,
                client_timestamp_ns=1,
            )
            self._late.append((time.monotonic() + LATE_S, keepalive.encode()))

    def _remap(self, message: ShmPoolAnnounce) -> None:
        """Maps all regions, although they are the same as before, and reads every header slot."""
        self._unmap()
        uris = [message.header_region_uri, *(pool.region_uri for pool in message.payload_pools)]
        for uri in uris:
            path = _native.parse_region_uri(uri).path
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                # An epoch that ended meanwhile.
                return
            try:
                self._mappings.append(mmap.mmap(descriptor, 0, prot=mmap.PROT_READ))
            finally:
                os.close(descriptor)
        for mapping in self._mappings:
            assert struct.unpack_from("<Q", mapping)[0] == MAGIC
        header = self._mappings[0]
        for slot in range(message.header_nslots):
            struct.unpack_from("<Q", header, 64 + slot * message.header_slot_bytes)
        self.remaps += 1

    def _unmap(self) -> None:
        while self._mappings:
            self._mappings.pop().close()

    def _hello(self, consumer_id: int) -> bytes:
        return ConsumerHello(
            stream_id=self._stream_id,
            consumer_id=consumer_id,
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
        self._publication.offer(message)
        self.sent += 1
