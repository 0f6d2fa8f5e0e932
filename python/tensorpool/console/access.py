"""Who may use the console: tokens, session cookies, and the Host and Origin of requests.

Pure. Any web page that a user opens can send requests to a port of this machine. The console therefore
answers only if the Host is its own address (DNS rebinding), the Origin is its own page, and the request
carries a cookie that the token of the opened address was exchanged for. The cookie is not the token: an
address in a history or in a log of a proxy does not outlive the process that printed it, unless a token
file says so.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import secrets
import stat
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

from ..errors import ConfigError

_MIN_TOKEN: Final = 16
_MAX_TOKEN: Final = 512
_MAX_FILE: Final = 4096
_MAX_DIGITS: Final = 10
"""Digits of a user id."""
NO_USER: Final = -1
"""Instead of a user id, for a connection that should be in the kernel's table and is not."""
_LOCAL_NAMES: Final = frozenset({"localhost"})


class ViewerRole(StrEnum):
    """What a browser may do."""

    WATCH = "watch"
    """See everything."""
    STEER = "steer"
    """Also give orders."""


def new_token() -> str:
    """A token that cannot be guessed: 256 bits."""
    return secrets.token_urlsafe(32)


def is_same(left: str, right: str) -> bool:
    """Compares two secrets in a time that does not depend on where they differ, nor on their lengths."""
    digests = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in (left, right)]
    return hmac.compare_digest(*digests)


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of a console. Without a token to steer, every viewer only watches."""

    watch: str = field(default_factory=new_token, repr=False)
    steer: str | None = field(default=None, repr=False)

    def role(self, token: str) -> ViewerRole | None:
        """What the holder of a token may do; None for a wrong token."""
        # Both are compared, so that the time does not show which one is set.
        is_steer = self.steer is not None and is_same(token, self.steer)
        is_watch = is_same(token, self.watch)
        return ViewerRole.STEER if is_steer else ViewerRole.WATCH if is_watch else None


def read_token_file(path: Path, *, read_only: bool = False) -> Tokens:
    """The tokens of a private file: the first line steers, an optional second line only watches.

    Raises ConfigError for a file that others can read, and for tokens that are too short.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"{path} is not a file; write the token into a file")
        if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ConfigError(f"{path} can be read by other users; run chmod 600 {path}")
        text = os.read(descriptor, _MAX_FILE).decode("utf-8", "replace")
    finally:
        os.close(descriptor)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        raise ConfigError(f"{path} is empty; write a token of {_MIN_TOKEN} characters or more into it")
    for line in lines[:2]:
        if not (_MIN_TOKEN <= len(line) <= _MAX_TOKEN and line.isascii() and line.isprintable()):
            raise ConfigError(
                f"{path}: a token has {_MIN_TOKEN} to {_MAX_TOKEN} printable characters without accents; "
                "python -c 'import secrets; print(secrets.token_urlsafe(32))' makes one"
            )
    watch = lines[1] if len(lines) > 1 else (lines[0] if read_only else new_token())
    return Tokens(watch=watch, steer=None if read_only else lines[0])


class Session(NamedTuple):
    """What a valid cookie stands for."""

    role: ViewerRole
    user: int | None
    """The user of this machine whose connection the cookie was given to; None if that was not known."""


class Sessions:
    """Cookies of the two roles, made from the tokens.

    Browsers send a cookie to every port of a host. On a machine of several users, a page that another user
    serves on another port gets it. A cookie therefore contains, where the kernel knows it, the user whose
    connection it was given to, and is valid on connections of this user only.

    Tokens of a file outlive a process, and so do their cookies: a page on a wall reconnects to a console that
    was started again. Another token makes them invalid.
    """

    def __init__(self, port: int, tokens: Tokens) -> None:
        # Cookies do not distinguish ports: another console on this host has another name.
        self.name = f"tensorpool-console-{port}"
        known = {ViewerRole.WATCH: tokens.watch, ViewerRole.STEER: tokens.steer}
        self._tokens = {role: token for role, token in known.items() if token is not None}

    def value(self, role: ViewerRole, user: int | None = None) -> str:
        """The cookie of a role that has a token, for connections of a user of this machine.

        The token cannot be computed from its cookie, nor the cookie of one role or user from that of another.
        """
        bound = "" if user is None else f"{user}."
        text = f"{self.name} {role} {bound}"
        return bound + hmac.new(self._tokens[role].encode(), text.encode(), hashlib.sha256).hexdigest()

    def read(self, cookies: Mapping[str, str]) -> Session | None:
        """The session of a request by its cookies; None if it has no valid one."""
        value = cookies.get(self.name, "")
        digits, dot, _ = value.partition(".")
        if dot and not (len(digits) <= _MAX_DIGITS and digits.isascii() and digits.isdecimal()):
            return None
        user = int(digits) if dot else None
        roles = [role for role in self._tokens if is_same(value, self.value(role, user))]
        return Session(roles[0], user) if roles else None


@dataclass(frozen=True, slots=True)
class OpeningToken:
    """A token in the address that a browser of this desktop is started with.

    All users of a machine can read the arguments of a command. It is therefore good for connections of this
    user only, and for a short time.
    """

    user: int
    expires_s: float
    token: str = field(default_factory=new_token, repr=False)

    def is_valid(self, token: str, now_s: float) -> bool:
        """Whether this is the token, and still in time. The connection must be of `user` too."""
        return is_same(token, self.token) and now_s < self.expires_s


def connection_owner(table: Iterable[str], client: tuple[str, int], server_port: int) -> int | None:
    """The user id of the client's end of a connection within this machine.

    `table` has the lines of /proc/net/tcp and tcp6. None if the client's end is not on this machine.
    """
    host, port = ipaddress.ip_address(client[0]), client[1]
    if isinstance(host, ipaddress.IPv6Address) and host.ipv4_mapped is not None:
        host = host.ipv4_mapped
    packed = [host.packed]
    if isinstance(host, ipaddress.IPv4Address):
        # An IPv4 connection of a socket for both.
        packed.append(bytes(10) + b"\xff\xff" + host.packed)
    names = {f"{_kernel_text(address)}:{port:04X}" for address in packed}
    for line in table:
        match line.split():
            case [_, local, remote, "01", _, _, _, owner, *_] if local in names:
                if remote.endswith(f":{server_port:04X}"):
                    return int(owner)
    return None


def _kernel_text(address: bytes) -> str:
    """An address as the kernel prints it: four bytes at a time, in the order of this machine."""
    parts = (address[at : at + 4] for at in range(0, len(address), 4))
    return "".join(f"{int.from_bytes(part, sys.byteorder):08X}" for part in parts)


@dataclass(frozen=True, slots=True)
class HostRule:
    """Which Host and Origin a request may have."""

    port: int
    is_secure: bool = False
    names: Collection[str] = ()
    """Names beyond this machine's own addresses, as `--allow-host` gives them."""
    is_loopback: bool = True
    behind_proxy: bool = False

    def host_fault(self, host: str | None) -> str | None:
        """Why a Host is refused; None if it is this console's."""
        if not host:
            return "the request has no Host"
        name, port = _split(host)
        if self.behind_proxy and name in self.names:
            return None
        if (self._default_port if port is None else port) != self.port:
            return f"Host {host!r} has another port"
        if name in self.names or name in _LOCAL_NAMES:
            return None
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return f"Host {host!r} is not an address of this machine; --allow-host permits a name"
        if self.is_loopback and not address.is_loopback:
            return f"Host {host!r} is not a loopback address"
        return None

    def needs_secure_cookie(self, host: str) -> bool:
        """Whether the browser has reached this Host by TLS, of the console or of a proxy."""
        return self.is_secure or (self.behind_proxy and _split(host)[0] in self.names)

    @property
    def _default_port(self) -> int:
        return 443 if self.is_secure else 80

    def origin_fault(self, origin: str | None, host: str | None) -> str | None:
        """Why an Origin is refused; None if it is the page that this host served."""
        if origin is None:
            return None
        scheme, _, rest = origin.partition("://")
        allowed = {"https"} if self.is_secure else {"http"}
        if self.behind_proxy:
            allowed.add("https")
        if scheme not in allowed or rest != host:
            return f"Origin {origin!r} is not the page of this console"
        return None


def _split(host: str) -> tuple[str, int | None]:
    """Name and port of a Host; a port of None is the scheme's own, -1 is no port."""
    name, port = host, ""
    if host.startswith("["):
        name, _, rest = host[1:].partition("]")
        if rest and not rest.startswith(":"):
            return name, -1
        port = rest[1:]
    elif host.count(":") == 1:
        name, _, port = host.partition(":")
    if not port:
        return name.lower(), None
    return name.lower(), int(port) if port.isascii() and port.isdecimal() and len(port) < 6 else -1


CONTENT_POLICY: Final = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "manifest-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ]
)
PAGE_POLICY: Final = "; ".join(
    [
        "sandbox allow-scripts",
        "default-src 'none'",
        "script-src 'unsafe-inline'",
        "style-src 'unsafe-inline'",
        "img-src data:",
        "frame-ancestors 'none'",
    ]
)
"""For a page that brings its own scripts: it has an origin of its own, and so no cookie of the console."""
SECURITY_HEADERS: Final = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cache-Control": "no-store",
}
