"""Recordings for the tests of storage, a comparison of two of them, and a relay that changes requests."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorpool import recording
from tensorpool.recording import WriterLimits

STREAM = 30_000
SMALL_STREAM = 30_001
FRAMES = 60


def make_array(seq: int, size: int = 40_000) -> npt.NDArray[np.uint8]:
    """A tensor that can be computed again."""
    return np.random.default_rng(seq).integers(0, 256, size, np.uint8)


def write_recording(root: Path, *, first: int = 0, count: int = FRAMES, epoch: int = 1) -> None:
    """Two streams, one of large and one of tiny frames, in several segments and with a gap."""
    limits = WriterLimits(segment_bytes=600_000, batch_bytes=200_000)
    with recording.RecordingWriter(root, limits=limits, background=False) as writer:
        for seq in range(first, first + count):
            if seq == first + 7:
                writer.gap(stream_id=STREAM, epoch=epoch, first_seq=seq, count=1, reason="late")
                continue
            writer.append(make_array(seq), stream_id=STREAM, epoch=epoch, seq=seq)
            writer.append(make_array(seq, 16), stream_id=SMALL_STREAM, epoch=epoch, seq=seq)
        writer.mark("done")


def contents(root: str | Path) -> dict[str, Any]:
    """All that a reader gets of a recording: every number, every byte, every table and the ledger."""
    with recording.open(root) as opened:
        return {
            "frames": {
                stream: [
                    (
                        frame.epoch,
                        frame.seq,
                        frame.receive_time_ns,
                        frame.crc32c,
                        frame.verify().array.tobytes(),
                    )
                    for frame in opened.frames(stream)
                ]
                for stream in opened.streams
            },
            "marks": opened.table("marks").to_pydict(),
            "gaps": opened.table("gaps").to_pydict(),
            "ledgers": opened.ledgers(),
        }


Change = Callable[[bytes, int], bytes]
"""What a relay makes of a piece of a request, behind so many bytes of the connection."""


def unchanged(content: bytes, _passed: int) -> bytes:
    return content


def never(_content: bytes) -> bool:
    return False


class Relay:
    """Passes connections on to a server, and changes requests on their way.

    `loses`: whether the connection breaks when the server answers a request that has this piece.
    """

    def __init__(self, port: int, change: Change = unchanged, loses: Callable[[bytes], bool] = never) -> None:
        self._target = port
        self._change = change
        self._loses = loses
        self._is_cut = False
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            if self._is_cut:
                client.close()
                continue
            try:
                upstream = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                client.close()
                continue
            self._sockets += [client, upstream]
            is_lost = threading.Event()
            for pass_on, ends in ((self._ask, (client, upstream)), (self._answer, (upstream, client))):
                thread = threading.Thread(target=pass_on, args=(*ends, is_lost))
                self._threads.append(thread)
                thread.start()

    def _ask(self, source: socket.socket, sink: socket.socket, is_lost: threading.Event) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while content := source.recv(1 << 16):
                if self._loses(content):
                    is_lost.set()
                sent = self._change(content, passed)
                passed += len(content)
                sink.sendall(sent)
        _break(source, sink)

    def _answer(self, source: socket.socket, sink: socket.socket, is_lost: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while (content := source.recv(1 << 16)) and not is_lost.is_set():
                sink.sendall(content)
        _break(source, sink)

    def cut(self) -> None:
        """Breaks all connections, and refuses new ones."""
        self._is_cut = True
        _break(*self._sockets)

    def mend(self) -> None:
        """Ends `cut`."""
        self._is_cut = False

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._accepting.join()
        _break(*self._sockets)
        for thread in self._threads:
            thread.join()
        for each in self._sockets:
            each.close()


def _break(*connections: socket.socket) -> None:
    for each in connections:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


@dataclass
class Damage:
    """Flips one byte of a large request, as often as it is asked to."""

    left: int
    done: int = 0

    def __call__(self, content: bytes, passed: int) -> bytes:
        # Behind the head of the request, in the middle of a payload.
        if self.left and passed > 100_000 and len(content) > 1000:
            content = content[:500] + bytes([content[500] ^ 1]) + content[501:]
            self.left -= 1
            self.done += 1
        return content


def without_condition(content: bytes, _passed: int) -> bytes:
    """Takes the condition from a request, as a server that does not know it."""
    return content.replace(b"\r\nif-none-match:", b"\r\nx-not-heeded-:")


@dataclass
class LostAnswers:
    """Loses the answer to the first write of each object whose name has one of these parts."""

    parts: tuple[bytes, ...]
    lost: list[bytes] = field(default_factory=list)

    def __call__(self, content: bytes) -> bool:
        match = re.match(rb"PUT (\S+) ", content)
        if match is None or match[1] in self.lost or not any(part in match[1] for part in self.parts):
            return False
        self.lost.append(match[1])
        return True


@contextlib.contextmanager
def relay(
    port: int, change: Change = unchanged, *, loses: Callable[[bytes], bool] = never
) -> Iterator[Relay]:
    """A relay in front of a server."""
    running = Relay(port, change, loses)
    try:
        yield running
    finally:
        running.close()
