"""Where answers may go: response channels of strangers, read strictly (discovery §4.3). Pure.

A channel names a media driver's resource: a socket, a file of gigabytes, a host to send to. So nothing of
what a stranger wrote is handed on but an endpoint that the configuration allows. What only concerns the
subscriber's own side is left out, everything else is refused.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ..errors import ConfigError

IPC: Final = "aeron:ipc"
_MAX_CHANNEL: Final = 512
# Harmless on the subscriber's side, and not taken over on ours.
_PASSED_OVER: Final = frozenset(
    {"alias", "group", "mtu", "reliable", "rejoin", "sparse", "term-length", "tether"}
)
_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_ADDRESS: Final = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<four>[^\[\]:]+)):(?P<port>[0-9]{1,5})")
_ALLOWED: Final = re.compile(
    r"(?:\[(?P<six>[0-9A-Fa-f:./]+)\]|(?P<four>[^\[\]:]+)):(?P<first>[0-9]{1,5})(?:-(?P<last>[0-9]{1,5}))?"
)
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class Channel:
    """An Aeron channel, taken apart."""

    media: str
    parameters: dict[str, str]

    @classmethod
    def parse(cls, text: str) -> Channel | None:
        """None for what is no channel."""
        if len(text) > _MAX_CHANNEL or not text.isascii() or not text.isprintable():
            return None
        head, _, rest = text.partition("?")
        prefix, _, media = head.partition(":")
        if prefix != "aeron" or not media.isalnum():
            return None
        parameters: dict[str, str] = {}
        for part in rest.split("|") if rest else ():
            key, equals, value = part.partition("=")
            if not equals or not key or not value or key in parameters:
                return None
            parameters[key] = value
        return cls(media, parameters)


def is_ipc(channel: str) -> bool:
    """Whether it stays on one media driver."""
    found = Channel.parse(channel)
    return found is not None and found.media == "ipc"


def endpoint_of(channel: str) -> tuple[str, int] | None:
    """Host and port of a UDP channel; None where there are none."""
    found = Channel.parse(channel)
    if found is None or found.media != "udp":
        return None
    match = _ADDRESS.fullmatch(found.parameters.get("endpoint", ""))
    if match is None or not 0 < int(match["port"]) < 1 << 16:
        return None
    return match["six"] or match["four"], int(match["port"])


def udp_channel(host: str, port: int) -> str:
    return f"aeron:udp?endpoint=[{host}]:{port}" if ":" in host else f"aeron:udp?endpoint={host}:{port}"


@dataclass(frozen=True, slots=True)
class AllowedEndpoint:
    """`10.0.0.0/24:40124-40199`, `[fd00::/8]:40124` or `viewer.example.org:40124`."""

    host: str | _Network
    first_port: int
    last_port: int

    @classmethod
    def parse(cls, text: str) -> AllowedEndpoint:
        match = _ALLOWED.fullmatch(text.strip())
        if match is None:
            raise ConfigError("write addresses and ports, as in '10.0.0.0/24:40124-40199'")
        first, last = int(match["first"]), int(match["last"] or match["first"])
        if not 0 < first <= last < 1 << 16:
            raise ConfigError("ports are 1 to 65535, the lower one first")
        return cls(_host(match["six"] or match["four"]), first, last)

    def allows(self, host: str, port: int) -> bool:
        if not self.first_port <= port <= self.last_port:
            return False
        if isinstance(self.host, str):
            return host.lower() == self.host
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        # A wide range is meant for machines, not for groups of them.
        if address.is_multicast and not self.host.is_multicast:
            return False
        return not address.is_unspecified and address in self.host


def _host(text: str) -> str | _Network:
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        if "/" in text or text.replace(".", "").isdigit() or not _HOST.fullmatch(text):
            raise ConfigError(f"{text!r} is neither addresses nor a host: {error}") from None
        return text.lower()


class ResponseRules:
    """Which response channels are taken: `aeron:ipc`, and the UDP endpoints that are listed."""

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        self._allowed = tuple(AllowedEndpoint.parse(one) for one in allowed)

    def channel(self, asked: str) -> str | None:
        """The channel to publish on; None for one that is refused."""
        found = Channel.parse(asked)
        if found is None or not found.parameters.keys() <= _PASSED_OVER | {"endpoint"}:
            return None
        if found.media == "ipc":
            return None if "endpoint" in found.parameters else IPC
        endpoint = endpoint_of(asked)
        if endpoint is None or not any(one.allows(*endpoint) for one in self._allowed):
            return None
        return udp_channel(*endpoint)


def endpoints_fault(texts: Sequence[str]) -> str | None:
    """Why a list of allowed endpoints cannot be used."""
    for text in texts:
        try:
            AllowedEndpoint.parse(text)
        except ConfigError as error:
            return str(error)
    return None


def channel_fault(text: str) -> str | None:
    """Why a channel of the configuration cannot be used."""
    found = Channel.parse(text)
    if found is None or found.media not in ("ipc", "udp"):
        return "use a channel as in 'aeron:ipc' or 'aeron:udp?endpoint=registry.example.org:40123'"
    if found.media == "udp" and endpoint_of(text) is None:
        return "a UDP channel has an endpoint, as in 'aeron:udp?endpoint=registry.example.org:40123'"
    return None


def channels_fault(texts: Sequence[str]) -> str | None:
    return next((fault for text in texts if (fault := channel_fault(text)) is not None), None)
