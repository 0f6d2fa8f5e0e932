"""HOST:PORT of the metrics endpoint. The host is an address of this machine: its own, unless said."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Final, Self

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 9464
"""The one that exporters of OpenTelemetry use for Prometheus."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen. Port 0: any that is free."""

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT

    @classmethod
    def parse(cls, text: str) -> Self:
        """`HOST:PORT`, `HOST`, `:PORT` or `PORT`; raises ValueError with the reason."""
        host, port = text.strip(), ""
        if host.isascii() and host.isdecimal():
            host, port = "", host
        elif host.startswith("["):
            host, closing, rest = host[1:].partition("]")
            if not closing or (rest and not rest.startswith(":")):
                raise ValueError(f"{text!r} is no HOST:PORT; an IPv6 address is written as [::1]:9464")
            port = rest[1:]
        elif host.count(":") == 1:
            host, _, port = host.partition(":")
        host = {"": DEFAULT_HOST, "localhost": DEFAULT_HOST}.get(host, host)
        try:
            # No names: a look-up that takes its time, and may say another thing tomorrow.
            found = str(ipaddress.ip_address(host))
        except ValueError:
            raise ValueError(f"{text!r} is no HOST:PORT; HOST is an address, as in 127.0.0.1:9464") from None
        if not port:
            return cls(found)
        if not (port.isascii() and port.isdecimal() and int(port) < 1 << 16):
            raise ValueError(f"{port!r} is no port; ports are 0 to 65535")
        return cls(found, int(port))

    @property
    def is_loopback(self) -> bool:
        return ipaddress.ip_address(self.host).is_loopback

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def address_fault(text: str) -> str | None:
    """Why a setting is no address; None for one that is."""
    try:
        Address.parse(text)
    except ValueError as error:
        return str(error)
    return None
