"""One HTTP request, as little of it as a scrape needs. Pure: bytes in, an answer out.

A page on this machine is within reach of every web page that its users open: a foreign name that was made to
point here (DNS rebinding) is refused by its `Host`. Addresses are let in, since no name stands behind them.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

LARGEST_REQUEST: Final = 8192
_END: Final = b"\r\n\r\n"
_PLAIN: Final = "text/plain; charset=utf-8"
_WORDS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    421: "Misdirected Request",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
_LOCAL: Final = frozenset({"localhost"})


@dataclass(frozen=True, slots=True)
class Answer:
    """What goes back; the connection is closed after it."""

    status: int
    body: bytes
    content_type: str = _PLAIN
    allow: str = ""
    head_only: bool = False

    def encode(self) -> bytes:
        lines = [
            f"HTTP/1.1 {self.status} {_WORDS[self.status]}",
            f"Content-Type: {self.content_type}",
            f"Content-Length: {len(self.body)}",
            "X-Content-Type-Options: nosniff",
            "Cache-Control: no-store",
            "Connection: close",
        ]
        if self.allow:
            lines.append(f"Allow: {self.allow}")
        head = "\r\n".join(lines).encode("ascii") + _END
        return head if self.head_only else head + self.body


def words(status: int, text: str) -> Answer:
    return Answer(status, (text + "\n").encode())


def is_whole(received: bytes) -> bool:
    """Whether there is enough for an answer. Nothing after the head is read: no request here has a body."""
    return _END in received or len(received) > LARGEST_REQUEST


def answer(received: bytes, pages: Callable[[str], Answer | None], hosts: Collection[str] = ()) -> Answer:
    """`pages` gives the answer for a path, None for one that is not there."""
    head, end, _ = received.partition(_END)
    if not end or len(head) > LARGEST_REQUEST:
        return words(431, f"a request has at most {LARGEST_REQUEST} bytes")
    line, *rest = head.split(b"\r\n")
    parts = line.split(b" ")
    if len(parts) != 3 or not parts[2].startswith(b"HTTP/1.") or not parts[1].isascii():
        return words(400, "this is no HTTP request")
    fields: dict[bytes, bytes] = {}
    for one in rest:
        name, colon, value = one.partition(b":")
        if not colon or not name or name != name.strip() or (name.lower() == b"host" and b"host" in fields):
            return words(400, "this is no HTTP request")
        fields[name.lower()] = value.strip()
    if not host_is_known(fields.get(b"host", b"").decode("latin-1"), hosts):
        return words(421, "this name is not ours; metrics.hosts says which names are")
    if parts[0] not in (b"GET", b"HEAD"):
        return Answer(405, b"only GET and HEAD\n", allow="GET, HEAD")
    path = parts[1].decode("ascii").partition("?")[0]
    found = pages(path) or words(404, "not found; the metrics are at /metrics")
    if parts[0] == b"HEAD":
        return Answer(found.status, found.body, found.content_type, head_only=True)
    return found


def host_is_known(host: str, hosts: Collection[str] = ()) -> bool:
    """Whether a `Host` field names this machine: by an address, as localhost, or by a name that was set."""
    name = host
    if host.startswith("["):
        name, closing, port = host[1:].partition("]")
        if not closing or (port and not _is_port(port)):
            return False
    elif ":" in host:
        name, _, port = host.rpartition(":")
        if not _is_port(":" + port):
            return False
    if name.lower().rstrip(".") in _LOCAL or name.lower() in {one.lower() for one in hosts}:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_port(text: str) -> bool:
    return text.startswith(":") and text[1:].isascii() and text[1:].isdecimal() and int(text[1:]) < 1 << 16
