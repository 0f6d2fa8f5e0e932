"""Free ports for programs that bind them later; two tests never get the same port, also across processes."""

from __future__ import annotations

import os
import socket
from itertools import count

# Below the kernel's ephemeral ports (from 32768), which the kernel may assign to another program at any time.
# Processes start at different ports and never return one twice.
_FIRST, _SPAN = 10_000, 22_000
_numbers = count(os.getpid() * 1009)


def free_port() -> int:
    """A port of the loopback device that is free for TCP and UDP."""
    for _ in range(_SPAN):
        port = _FIRST + next(_numbers) % _SPAN
        if all(_can_bind(port, kind) for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM)):
            return port
    raise AssertionError(f"no free port between {_FIRST} and {_FIRST + _SPAN}")


def _can_bind(port: int, kind: socket.SocketKind) -> bool:
    with socket.socket(socket.AF_INET, kind) as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
