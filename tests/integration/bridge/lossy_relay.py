"""A UDP relay that drops, repeats, reorders, delays and corrupts Aeron's data frames, by a seed.

Status messages and NAKs pass unchanged, so that retransmission works.
"""

from __future__ import annotations

import heapq
import random
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

_DATA = 0x01
_DATA_HEADER = 32
# Header of a chunk of the second revision; its checksum covers everything behind it.
_CHUNK_HEADER = 8 + 53 + 8
_MAX_DATAGRAM_BYTES = 65_536


@dataclass(frozen=True)
class Impairments:
    """Probability of each impairment of a datagram."""

    drop: float = 0.0
    repeat: float = 0.0
    reorder: float = 0.0
    delay_s: float = 0.002
    corrupt: float = 0.0
    corrupt_header: float = 0.0
    """Of any datagram in both directions, anywhere in it: Aeron's header and those of chunks too."""


class LossyRelay:
    """Relays datagrams from `port` to `target` and back; `disconnect` and `reconnect` stop and resume it."""

    def __init__(self, target: int, impairments: Impairments, seed: int = 1) -> None:
        self._target = ("127.0.0.1", target)
        self.impairments = impairments
        self._random = random.Random(seed)
        self._front = self._socket()
        self._back = self._socket()
        self._front.bind(("127.0.0.1", 0))
        self._back.bind(("127.0.0.1", 0))
        self.port: int = self._front.getsockname()[1]
        self.dropped = self.repeated = self.reordered = self.corrupted = self.passed = 0
        self._sender: tuple[str, int] | None = None
        self._delayed: list[tuple[float, int, bytes]] = []
        self._count = 0
        self._is_disconnected = False
        self._stop = False
        self.forge: Callable[[bytes], bytes] | None = None
        """Changes one data frame, the next one."""
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)

    @staticmethod
    def _socket() -> socket.socket:
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        return udp

    def disconnect(self) -> None:
        self._is_disconnected = True

    def reconnect(self) -> None:
        self._is_disconnected = False

    def _run(self) -> None:
        while not self._stop:
            now = time.monotonic()
            while self._delayed and self._delayed[0][0] <= now:
                self._pass(heapq.heappop(self._delayed)[2])
            wait = 0.05 if not self._delayed else max(0.0, min(0.05, self._delayed[0][0] - now))
            for ready in select.select([self._front, self._back], [], [], wait)[0]:
                data, origin = ready.recvfrom(_MAX_DATAGRAM_BYTES)
                if self._is_disconnected:
                    continue
                if ready is self._front:
                    self._sender = origin
                    self._on_data(data)
                elif self._sender is not None:
                    self._front.sendto(self._corrupt_anywhere(data), self._sender)

    def _corrupt_anywhere(self, data: bytes) -> bytes:
        if not data or self._random.random() >= self.impairments.corrupt_header:
            return data
        self.corrupted += 1
        offset = self._random.randrange(min(len(data), _DATA_HEADER + _CHUNK_HEADER))
        return data[:offset] + bytes([data[offset] ^ 1 << self._random.randrange(8)]) + data[offset + 1 :]

    def _on_data(self, data: bytes) -> None:
        data = self._corrupt_anywhere(data)
        is_data = len(data) > _DATA_HEADER and int.from_bytes(data[6:8], "little") == _DATA
        if not is_data:
            self._pass(data)
            return
        if (forge := self.forge) is not None:
            self.forge = None
            data = forge(data)
        impairments, chance = self.impairments, self._random.random
        if chance() < impairments.drop:
            self.dropped += 1
            return
        # The first frame of the datagram; padding follows its length.
        length = min(int.from_bytes(data[:4], "little"), len(data))
        if chance() < impairments.corrupt and length > _DATA_HEADER + _CHUNK_HEADER:
            self.corrupted += 1
            offset = self._random.randrange(_DATA_HEADER + _CHUNK_HEADER, length)
            data = data[:offset] + bytes([data[offset] ^ 0x40]) + data[offset + 1 :]
        if chance() < impairments.repeat:
            self.repeated += 1
            self._delay(data)
        if chance() < impairments.reorder:
            self.reordered += 1
            self._delay(data)
            return
        self._pass(data)

    def _delay(self, data: bytes) -> None:
        self._count += 1
        heapq.heappush(self._delayed, (time.monotonic() + self.impairments.delay_s, self._count, data))

    def _pass(self, data: bytes) -> None:
        self.passed += 1
        self._back.sendto(data, self._target)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop = True
        self._thread.join()
        self._front.close()
        self._back.close()
