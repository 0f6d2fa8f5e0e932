"""Ports for tests whose programs bind them later: no two tests get the same one, in whatever process."""

from __future__ import annotations

import os
import socket
from itertools import count

# Below those that the kernel hands out by itself (from 32768): a port that nobody has at the moment would
# else be anybody's a moment later. Processes start at different places, and never give one twice.
_FIRST, _SPAN = 10_000, 22_000
_numbers = count(os.getpid() * 1009)


def free_port() -> int:
    """A port of the loopback device that is free for TCP and UDP."""
    for _ in range(_SPAN):
        port = _FIRST + next(_numbers) % _SPAN
        if all(_can_bind(port, kind) for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM)):
            return port
    raise AssertionError("every port is taken")


def _can_bind(port: int, kind: socket.SocketKind) -> bool:
    with socket.socket(socket.AF_INET, kind) as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
