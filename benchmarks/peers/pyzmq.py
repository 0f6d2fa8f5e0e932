"""ZeroMQ: no shared memory, a local socket; the yardstick for copying through the kernel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import zmq

from ..library import Frames, Plan, Sender, Source

_SPINS = 256


class PyZmq:
    def version(self) -> str:
        return f"{zmq.__version__} (libzmq {zmq.zmq_version()})"

    def terms(self) -> str:
        return "PUB/SUB over ipc, high-water marks as deep as the ring; send() copies, recv(copy=False) views"

    def beside(self, plan: Plan) -> AbstractContextManager[object]:
        return nullcontext()

    @contextmanager
    def producer(self, plan: Plan, source: Source) -> Iterator[Sender]:
        with zmq.Context() as context, context.socket(zmq.PUB) as socket:
            socket.setsockopt(zmq.SNDHWM, plan.nslots)
            socket.setsockopt(zmq.LINGER, 0)
            socket.bind(_endpoint(plan))
            yield Sender(partial(socket.send, source.bytes))

    @contextmanager
    def consumer(self, plan: Plan) -> Iterator[Frames]:
        with zmq.Context() as context, context.socket(zmq.SUB) as socket:
            socket.setsockopt(zmq.RCVHWM, plan.nslots)
            socket.setsockopt(zmq.LINGER, 0)
            socket.subscribe(b"")
            socket.connect(_endpoint(plan))
            yield _frames(socket)


def _frames(socket: zmq.Socket[bytes]) -> Frames:
    receive, dont_wait, again = socket.recv, zmq.DONTWAIT, zmq.Again
    while True:
        for _ in range(_SPINS):
            try:
                frame = receive(dont_wait, copy=False)
            except again:
                continue
            words = frame.buffer.cast("Q")
            yield words[0], words[-1]
        yield None


def _endpoint(plan: Plan) -> str:
    return f"ipc://{plan.directory}/frames.sock"


LIBRARY = PyZmq()
