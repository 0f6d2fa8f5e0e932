"""A bad network: a UDP relay that drops, repeats, reorders, delays and corrupts on a seed.

Aeron's data frames are treated so; what goes back (status, NAKs) passes, so that retransmission works.
"""

from __future__ import annotations

import heapq
import random
import select
import socket
import threading
import time
from dataclasses import dataclass
from typing import Self

_DATA = 0x01
_DATA_HEADER = 32
# What a chunk of the second revision has before its data: all behind it is guarded by a checksum.
_CHUNK_HEADER = 8 + 53 + 8
_MOST = 65_536


@dataclass(frozen=True)
class Weather:
    """How likely each mishap is for a datagram."""

    drop: float = 0.0
    repeat: float = 0.0
    reorder: float = 0.0
    delay_s: float = 0.002
    corrupt: float = 0.0


class Relay:
    """From `port` to `target`, and answers back. Cut it with `cut()`, mend it with `mend()`."""

    def __init__(self, target: int, weather: Weather, seed: int = 1) -> None:
        self._target = ("127.0.0.1", target)
        self._weather = weather
        self._random = random.Random(seed)
        self._front = self._socket()
        self._back = self._socket()
        self._front.bind(("127.0.0.1", 0))
        self._back.bind(("127.0.0.1", 0))
        self.port: int = self._front.getsockname()[1]
        self.dropped = self.repeated = self.reordered = self.corrupted = self.passed = 0
        self._sender: tuple[str, int] | None = None
        self._later: list[tuple[float, int, bytes]] = []
        self._count = 0
        self._is_cut = False
        self._stop = False
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)

    @staticmethod
    def _socket() -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        return made

    def cut(self) -> None:
        self._is_cut = True

    def mend(self) -> None:
        self._is_cut = False

    def _run(self) -> None:
        while not self._stop:
            now = time.monotonic()
            while self._later and self._later[0][0] <= now:
                self._pass(heapq.heappop(self._later)[2])
            wait = 0.05 if not self._later else max(0.0, min(0.05, self._later[0][0] - now))
            for one in select.select([self._front, self._back], [], [], wait)[0]:
                data, origin = one.recvfrom(_MOST)
                if self._is_cut:
                    continue
                if one is self._front:
                    self._sender = origin
                    self._on_data(data)
                elif self._sender is not None:
                    self._front.sendto(data, self._sender)

    def _on_data(self, data: bytes) -> None:
        is_data = len(data) > _DATA_HEADER and int.from_bytes(data[6:8], "little") == _DATA
        if not is_data:
            self._pass(data)
            return
        weather, chance = self._weather, self._random.random
        if chance() < weather.drop:
            self.dropped += 1
            return
        # The first frame of the datagram; behind its length there is padding that nobody reads.
        length = int.from_bytes(data[:4], "little")
        if chance() < weather.corrupt and length > _DATA_HEADER + _CHUNK_HEADER:
            self.corrupted += 1
            at = self._random.randrange(_DATA_HEADER + _CHUNK_HEADER, length)
            data = data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :]
        if chance() < weather.repeat:
            self.repeated += 1
            self._hold(data)
        if chance() < weather.reorder:
            self.reordered += 1
            self._hold(data)
            return
        self._pass(data)

    def _hold(self, data: bytes) -> None:
        self._count += 1
        heapq.heappush(self._later, (time.monotonic() + self._weather.delay_s, self._count, data))

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
