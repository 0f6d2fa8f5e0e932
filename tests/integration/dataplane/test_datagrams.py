"""Datagrams that any program may send to a media driver's UDP ports."""

from __future__ import annotations

import itertools
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.remote_process import TIMEOUT_S

STREAM_ID = 77
TERM_BYTES = 64 * 1024
_NAK, _SETUP = 2, 5

_PUBLISHER = """
import sys
import tensorpool as tp
from tensorpool.transport import StreamAddress

with tp.open("standalone", aeron_dir=sys.argv[1]) as ctx:
    publication = ctx.connection.publication(StreamAddress(sys.argv[2], int(sys.argv[3])))
    ctx.connection.wait_ready(publication)
    print("ready", flush=True)
    print(ctx.connection.network.pid, flush=True)
    for line in sys.stdin:
        # A media driver that ended would be started again: its process and its connections show it.
        network = ctx.connection.network
        print(publication.offer(b"x" * 32), network.pid, network.connections, flush=True)
    publication.close()
"""


_SUBSCRIBER = """
import sys
import tensorpool as tp
from tensorpool.transport import StreamAddress

with tp.open("standalone", aeron_dir=sys.argv[1]) as ctx:
    subscription = ctx.connection.subscription(StreamAddress(sys.argv[2], int(sys.argv[3])))
    ctx.connection.wait_ready(subscription)
    print("ready", flush=True)
    for line in sys.stdin:
        subscription.poll()
        network = ctx.connection.network
        print(int(subscription.is_connected), network.pid, network.connections, flush=True)
    subscription.close()
"""


@pytest.fixture
def receiver() -> Iterator[socket.socket]:
    """The port that a publication sends to, without an Aeron receiver behind it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as plain:
        plain.bind(("127.0.0.1", 0))
        plain.settimeout(TIMEOUT_S)
        yield plain


def test_nak_before_the_first_term_does_not_end_the_media_driver(
    receiver: socket.socket, aeron_dir: Path
) -> None:
    channel = f"aeron:udp?endpoint=127.0.0.1:{receiver.getsockname()[1]}|term-length={TERM_BYTES}"
    publisher = subprocess.Popen(
        [sys.executable, "-c", _PUBLISHER, str(aeron_dir), channel, str(STREAM_ID)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with publisher:
        assert publisher.stdin is not None
        assert publisher.stdout is not None
        assert publisher.stdout.readline() == "ready\n"
        media_driver = int(publisher.stdout.readline())
        sender, session_id, initial_term_id = _wait_for_setup(receiver)
        # The term before the first: its position is negative and inside the resend window.
        for offset in range(TERM_BYTES // 2, TERM_BYTES, 1024):
            receiver.sendto(
                struct.pack(
                    "<iBBHiiiii", 28, 0, 0, _NAK, session_id, STREAM_ID, initial_term_id - 1, offset, 1024
                ),
                sender,
            )
        # A later SETUP comes from the thread that handles a NAK, after the NAKs.
        assert _wait_for_setup(receiver)[1] == session_id
        assert _wait_for_setup(receiver)[1] == session_id
        publisher.stdin.write("offer\n")
        publisher.stdin.flush()
        assert publisher.stdout.readline() == f"not_connected {media_driver} 1\n"
        publisher.stdin.close()
    assert publisher.returncode == 0


def test_setup_before_the_first_term_ends_no_process(aeron_dir: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.bind(("127.0.0.1", 0))
        port = sender.getsockname()[1]
    channel = f"aeron:udp?endpoint=127.0.0.1:{port}"
    subscriber = subprocess.Popen(
        [sys.executable, "-c", _SUBSCRIBER, str(aeron_dir), channel, str(STREAM_ID)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def poll() -> list[int]:
        assert subscriber.stdin is not None
        assert subscriber.stdout is not None
        subscriber.stdin.write("poll\n")
        subscriber.stdin.flush()
        line = subscriber.stdout.readline()
        assert line, f"the subscriber has ended: {subscriber.wait(TIMEOUT_S)}"
        return [int(number) for number in line.split()]

    with subscriber, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        assert subscriber.stdin is not None
        assert subscriber.stdout is not None
        assert subscriber.stdout.readline() == "ready\n"
        _, media_driver, connections = poll()
        # The active term is the one before the first; then a publisher that is as it should be.
        for session_id, active_term_id in ((4242, 99), (4243, 100)):
            deadline = time.monotonic() + TIMEOUT_S
            is_connected = False
            for attempt in itertools.count():
                setup = struct.pack(
                    "<iBBHiiiiiiii", 40, 0, 0, _SETUP, TERM_BYTES - 1024, session_id, STREAM_ID, 100,
                    active_term_id, TERM_BYTES, 1408, 0,
                )  # fmt: skip
                sender.sendto(setup, ("127.0.0.1", port))
                time.sleep(0.02)
                is_connected = poll() == [1, media_driver, connections]
                assert time.monotonic() < deadline
                if is_connected or (session_id == 4242 and attempt == 50):
                    break
            assert is_connected is (session_id == 4243)
        subscriber.stdin.close()
    assert subscriber.returncode == 0


def _wait_for_setup(receiver: socket.socket) -> tuple[tuple[str, int], int, int]:
    """Address of the sender, session id and initial term id of its next SETUP frame."""
    while True:
        frame, sender = receiver.recvfrom(2048)
        if struct.unpack_from("<H", frame, 6)[0] == _SETUP:
            session_id, _, initial_term_id = struct.unpack_from("<iii", frame, 12)
            return sender, session_id, initial_term_id
