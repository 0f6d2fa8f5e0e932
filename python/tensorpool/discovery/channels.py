"""Aeron channels of discovery, and the rules for response channels (discovery §4.3). Pure.

A channel names resources of the media driver: a socket, a file of gigabytes, a host to send to. Of a client's
response channel only an endpoint that the configuration allows is used. Parameters that concern the
subscriber's side are dropped; a channel with any other parameter is refused.
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
_IGNORED_PARAMETERS: Final = frozenset(
    {"alias", "group", "mtu", "reliable", "rejoin", "sparse", "term-length", "tether"}
)
"""Parameters of the subscriber's side, which our publication does not use."""
_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_ADDRESS: Final = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<four>[^\[\]:]+)):(?P<port>[0-9]{1,5})")
_ALLOWED: Final = re.compile(
    r"(?:\[(?P<six>[0-9A-Fa-f:./]+)\]|(?P<four>[^\[\]:]+)):(?P<first>[0-9]{1,5})(?:-(?P<last>[0-9]{1,5}))?"
)
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class Channel:
    """A parsed Aeron channel."""

    media: str
    parameters: dict[str, str]

    @classmethod
    def parse(cls, text: str) -> Channel | None:
        """The channel; None if the text is not a valid one."""
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
    """Whether a channel is limited to one media driver."""
    parsed = Channel.parse(channel)
    return parsed is not None and parsed.media == "ipc"


def endpoint_of(channel: str) -> tuple[str, int] | None:
    """Host and port of a UDP channel; None for other channels."""
    parsed = Channel.parse(channel)
    if parsed is None or parsed.media != "udp":
        return None
    match = _ADDRESS.fullmatch(parsed.parameters.get("endpoint", ""))
    if match is None or not 0 < int(match["port"]) < 1 << 16:
        return None
    return match["six"] or match["four"], int(match["port"])


def udp_channel(host: str, port: int) -> str:
    """The UDP channel of an endpoint."""
    return f"aeron:udp?endpoint=[{host}]:{port}" if ":" in host else f"aeron:udp?endpoint={host}:{port}"


@dataclass(frozen=True, slots=True)
class AllowedEndpoint:
    """A setting such as `10.0.0.0/24:40124-40199`, `[fd00::/8]:40124` or `viewer.example.org:40124`."""

    host: str | _Network
    first_port: int
    last_port: int

    @classmethod
    def parse(cls, text: str) -> AllowedEndpoint:
        """The endpoint. Raises ConfigError."""
        match = _ALLOWED.fullmatch(text.strip())
        if match is None:
            raise ConfigError("use addresses and ports, as in '10.0.0.0/24:40124-40199'")
        first, last = int(match["first"]), int(match["last"] or match["first"])
        if not 0 < first <= last < 1 << 16:
            raise ConfigError("ports are 1 to 65535, with the lower port first")
        return cls(_host(match["six"] or match["four"]), first, last)

    def allows(self, host: str, port: int) -> bool:
        """Whether responses may go to that host and port."""
        if not self.first_port <= port <= self.last_port:
            return False
        if isinstance(self.host, str):
            return host.lower() == self.host
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        # A range of unicast addresses does not allow multicast groups.
        if address.is_multicast and not self.host.is_multicast:
            return False
        return not address.is_unspecified and address in self.host


def _host(text: str) -> str | _Network:
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        if "/" in text or text.replace(".", "").isdigit() or not _HOST.fullmatch(text):
            raise ConfigError(f"{text!r} is neither an address range nor a host name: {error}") from None
        return text.lower()


class ResponseRules:
    """The allowed response channels: `aeron:ipc` and the listed UDP endpoints."""

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        self._allowed = tuple(AllowedEndpoint.parse(text) for text in allowed)

    def channel(self, requested: str) -> str | None:
        """The channel to publish on; None for a channel that is refused."""
        parsed = Channel.parse(requested)
        if parsed is None or not parsed.parameters.keys() <= _IGNORED_PARAMETERS | {"endpoint"}:
            return None
        if parsed.media == "ipc":
            return None if "endpoint" in parsed.parameters else IPC
        endpoint = endpoint_of(requested)
        if endpoint is None or not any(allowed.allows(*endpoint) for allowed in self._allowed):
            return None
        return udp_channel(*endpoint)


def endpoints_fault(texts: Sequence[str]) -> str | None:
    """Why a list of allowed endpoints is invalid."""
    for text in texts:
        try:
            AllowedEndpoint.parse(text)
        except ConfigError as error:
            return str(error)
    return None


def channel_fault(text: str) -> str | None:
    """Why a channel of the configuration is invalid."""
    parsed = Channel.parse(text)
    if parsed is None or parsed.media not in ("ipc", "udp"):
        return "use a channel as in 'aeron:ipc' or 'aeron:udp?endpoint=registry.example.org:40123'"
    if parsed.media == "udp" and endpoint_of(text) is None:
        return "a UDP channel has an endpoint, as in 'aeron:udp?endpoint=registry.example.org:40123'"
    return None


def channels_fault(texts: Sequence[str]) -> str | None:
    """Why a list of channels is invalid."""
    return next((fault for text in texts if (fault := channel_fault(text)) is not None), None)
