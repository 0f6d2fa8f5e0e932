"""ZeroMQ: a local socket without shared memory, the reference for copies through the kernel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import zmq

from ..library import Frames, Plan, Sender, Source

# Empty polls before the caller's loop gets control and reads the clock.
_POLLS_PER_YIELD = 256


class PyZmq:
    """ZeroMQ PUB/SUB over ipc."""

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
        for _ in range(_POLLS_PER_YIELD):
            try:
                frame = receive(dont_wait, copy=False)
            except again:
                continue
            values = frame.buffer.cast("Q")
            yield values[0], values[-1]
        yield None


def _endpoint(plan: Plan) -> str:
    return f"ipc://{plan.directory}/frames.sock"


LIBRARY = PyZmq()
