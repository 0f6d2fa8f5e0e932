"""The network between the two hosts of the demo: two network namespaces and a wire, where that is permitted;
else the loopback of this machine. At the end nothing of it is left."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

_PORTS: Final = (40100, 40101, 40102)
_ADDRESSES: Final = ("10.78.0.1", "10.78.0.2")
_WAYS: Final = ("payload_channel", "control_channel", "metadata_channel")


@dataclass(frozen=True, slots=True)
class Wire:
    """How a program is started on each host, and the channels that the second receives on."""

    prefixes: tuple[tuple[str, ...], tuple[str, ...]]
    channels: dict[str, str]
    words: str


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=30)


def make_wire(stack: ExitStack) -> Wire:
    """Namespaces if they can be made; what was made is removed with the stack."""
    if os.geteuid() == 0 and shutil.which("ip") is not None:
        with ExitStack() as own:
            try:
                made = _namespaces(own)
            except (subprocess.SubprocessError, OSError):
                pass
            else:
                stack.push(own.pop_all())
                return made
    channels = {way: f"aeron:udp?endpoint=127.0.0.1:{port}" for way, port in zip(_WAYS, _free(), strict=True)}
    return Wire(((), ()), channels, "two media drivers on loopback; as root: two network namespaces")


def _namespaces(stack: ExitStack) -> Wire:
    mark = secrets.token_hex(3)
    names = (f"tpc{mark}", f"tpl{mark}")
    for name in names:
        _ip("netns", "add", name)
        stack.callback(_ip, "netns", "del", name)
    _ip("link", "add", names[0], "type", "veth", "peer", "name", names[1])
    for name, address in zip(names, _ADDRESSES, strict=True):
        _ip("link", "set", name, "netns", name, "name", "wire")
        _ip("-n", name, "addr", "add", f"{address}/24", "dev", "wire")
        for device in ("wire", "lo"):
            _ip("-n", name, "link", "set", device, "up")
    channels = {
        way: f"aeron:udp?endpoint={_ADDRESSES[1]}:{port}" for way, port in zip(_WAYS, _PORTS, strict=True)
    }
    first, second = (("ip", "netns", "exec", name) for name in names)
    return Wire((first, second), channels, "two network namespaces with a wire between them")


def _free() -> list[int]:
    """UDP ports that nobody has at the moment."""
    with ExitStack() as stack:
        ports = []
        for _ in _WAYS:
            one = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            one.bind(("127.0.0.1", 0))
            ports.append(int(one.getsockname()[1]))
        return ports
