"""Recordings for the tests of storage, a comparison of two of them, and a relay that damages requests."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
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


class DamagingRelay:
    """Passes connections on to a server, and flips one byte of a large request as often as it is asked to."""

    def __init__(self, port: int) -> None:
        self._target = port
        self.damages_left = 0
        self.damaged = 0
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
            upstream = socket.create_connection(("127.0.0.1", self._target))
            self._sockets += [client, upstream]
            for source, sink, is_request in ((client, upstream, True), (upstream, client, False)):
                thread = threading.Thread(target=self._pass_on, args=(source, sink, is_request))
                self._threads.append(thread)
                thread.start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, is_request: bool) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while content := source.recv(1 << 16):
                # Behind the head of the request, in the middle of a payload.
                if is_request and self.damages_left and passed > 100_000 and len(content) > 1000:
                    content = content[:500] + bytes([content[500] ^ 1]) + content[501:]
                    self.damages_left -= 1
                    self.damaged += 1
                passed += len(content)
                sink.sendall(content)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._accepting.join()
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in self._sockets:
            each.close()


@contextlib.contextmanager
def damaging_relay(port: int) -> Iterator[DamagingRelay]:
    """A relay in front of a server."""
    relay = DamagingRelay(port)
    try:
        yield relay
    finally:
        relay.close()
