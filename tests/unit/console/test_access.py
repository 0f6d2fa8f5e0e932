"""Tokens, sessions, and the Host and Origin of requests."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from tensorpool.console.access import (
    CONTENT_POLICY,
    NO_USER,
    HostRule,
    OpeningToken,
    Sessions,
    Tokens,
    ViewerRole,
    connection_owner,
    read_token_file,
)
from tensorpool.errors import ConfigError

TOKEN = "a-token-of-some-length"
RULE = HostRule(8470)


def test_tokens_give_their_role() -> None:
    tokens = Tokens(watch="watching-token-1", steer="steering-token-1")
    assert tokens.role("steering-token-1") is ViewerRole.STEER
    assert tokens.role("watching-token-1") is ViewerRole.WATCH
    assert tokens.role("") is tokens.role("steering-token-") is tokens.role("\udcff") is None
    assert Tokens(watch=TOKEN).role(TOKEN) is ViewerRole.WATCH


def test_tokens_are_not_in_the_text_of_an_object() -> None:
    assert TOKEN not in repr(Tokens(watch=TOKEN, steer=TOKEN))


def test_session_cookie_is_not_the_token_and_differs_by_role() -> None:
    tokens = Tokens(watch="watching-token-1", steer="steering-token-1")
    sessions = Sessions(8470, tokens)
    steer, watch = sessions.value(ViewerRole.STEER), sessions.value(ViewerRole.WATCH)
    assert steer != watch
    assert sessions.read({sessions.name: steer}) == (ViewerRole.STEER, None)
    assert sessions.read({sessions.name: watch}) == (ViewerRole.WATCH, None)
    assert sessions.read({sessions.name: ""}) is sessions.read({}) is None
    assert not {steer, watch} & {tokens.watch, tokens.steer}
    assert Sessions(8471, tokens).name != sessions.name


def test_session_of_a_user_is_not_that_of_another() -> None:
    sessions = Sessions(8470, Tokens(watch="watching-token-1", steer="steering-token-1"))
    value = sessions.value(ViewerRole.STEER, 1000)
    assert sessions.read({sessions.name: value}) == (ViewerRole.STEER, 1000)
    digest = value.partition(".")[2]
    others = [
        "1001." + digest,
        "01000." + digest,
        "." + digest,
        digest,
        "-1." + digest,
        "9" * 5000 + "." + digest,
    ]
    assert [sessions.read({sessions.name: other}) for other in others] == [None] * len(others)
    # Not even the console's own, for a connection that the kernel's table does not have.
    assert sessions.read({sessions.name: sessions.value(ViewerRole.STEER, NO_USER)}) is None


def test_session_is_valid_as_long_as_its_token() -> None:
    first = Sessions(8470, Tokens(watch="watching-token-1", steer="steering-token-1"))
    cookies = {role: {first.name: first.value(role)} for role in ViewerRole}
    # The console was started again with the same file.
    again = Sessions(8470, Tokens(watch="watching-token-1", steer="steering-token-1"))
    assert [again.read(cookies[role]) for role in ViewerRole] == [(role, None) for role in ViewerRole]
    # One that only watches, and one with other tokens.
    assert Sessions(8470, Tokens(watch="watching-token-1")).read(cookies[ViewerRole.STEER]) is None
    swapped = Sessions(8470, Tokens(watch="steering-token-1", steer="watching-token-1"))
    for sessions in (swapped, Sessions(8470, Tokens(steer=TOKEN))):
        assert sessions.read(cookies[ViewerRole.STEER]) is sessions.read(cookies[ViewerRole.WATCH]) is None


def test_opening_token_is_for_a_while() -> None:
    opening = OpeningToken(user=1000, expires_s=50.0)
    assert opening.is_valid(opening.token, 49.0)
    assert not opening.is_valid(opening.token, 50.0)
    assert not opening.is_valid("", 49.0)
    assert opening.token not in repr(opening)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_owner_of_a_connection_is_the_user_of_its_client(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection((host, port)) as client:
            table = [
                line for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()
            ]
            address = client.getsockname()[:2]
            assert connection_owner(table, address, port) == os.getuid()
            assert connection_owner(table, address, port + 1) is None
            assert connection_owner(table, ("192.0.2.1", address[1]), port) is None


def test_owner_of_an_old_or_mapped_connection() -> None:
    rest = "00000000:00000000 00:00000000 00000000"
    ended = f"  1: 0100007F:C350 0100007F:2116 06 {rest}     0        0 0 3 00"
    host = "0000000000000000FFFF00000100007F"
    mapped = f"  2: {host}:C350 {host}:2116 01 {rest}  1003        0 12345 1 00"
    assert connection_owner([ended], ("127.0.0.1", 50_000), 8470) is None
    if sys.byteorder == "little":
        assert connection_owner([ended, mapped], ("127.0.0.1", 50_000), 8470) == 1003
        assert connection_owner([mapped], ("::ffff:127.0.0.1", 50_000), 8470) == 1003


def test_cookie_is_secure_where_the_browser_uses_tls() -> None:
    assert not HostRule(8470).needs_secure_cookie("127.0.0.1:8470")
    assert HostRule(8470, is_secure=True).needs_secure_cookie("127.0.0.1:8470")
    proxied = HostRule(8470, names={"lab.example"}, is_loopback=False, behind_proxy=True)
    assert proxied.needs_secure_cookie("lab.example")
    assert not proxied.needs_secure_cookie("10.0.0.1:8470")


@pytest.mark.parametrize("host", ["127.0.0.1:8470", "localhost:8470", "LOCALHOST:8470", "[::1]:8470"])
def test_own_host_is_accepted(host: str) -> None:
    assert RULE.host_fault(host) is None
    assert RULE.origin_fault(f"http://{host}", host) is None


@pytest.mark.parametrize(
    "host",
    [
        None, "", "evil.example:8470", "127.0.0.1", "127.0.0.1:80", "127.0.0.1:8471", "10.0.0.1:8470",
        "localhost.evil.example:8470", "127.0.0.1.evil.example:8470", "[::1]8470", "127.0.0.1:8470x",
        "127.0.0.1:-1", "[::ffff:10.0.0.1]:8470", "0.0.0.0:8470",
    ],
)  # fmt: skip
def test_other_host_is_refused(host: str | None) -> None:
    assert RULE.host_fault(host) is not None


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "",
        "http://evil.example",
        "https://127.0.0.1:8470",
        "http://127.0.0.1:8471",
        "http://localhost:8470",
    ],
)
def test_other_origin_is_refused(origin: str) -> None:
    assert RULE.origin_fault(origin, "127.0.0.1:8470") is not None


def test_allowed_name_needs_the_port_unless_a_proxy_is_in_front() -> None:
    named = HostRule(8470, names={"lab.example"}, is_loopback=False)
    assert named.host_fault("lab.example:8470") is None
    assert named.host_fault("lab.example") is not None
    assert named.host_fault("10.0.0.1:8470") is None
    proxied = HostRule(8470, names={"lab.example"}, is_loopback=False, behind_proxy=True)
    assert proxied.host_fault("lab.example") is None
    assert proxied.origin_fault("https://lab.example", "lab.example") is None
    assert HostRule(443, is_secure=True, is_loopback=False).host_fault("10.0.0.1") is None


def test_token_file_has_one_or_two_tokens(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\nanother-long-token\n")
    path.chmod(0o600)
    assert read_token_file(path) == Tokens(watch="another-long-token", steer=TOKEN)
    assert read_token_file(path, read_only=True).steer is None
    path.write_text(TOKEN)
    assert read_token_file(path).steer == TOKEN
    assert read_token_file(path).watch != TOKEN
    assert read_token_file(path, read_only=True) == Tokens(watch=TOKEN)


@pytest.mark.parametrize(
    ("text", "mode", "reason"),
    [
        (TOKEN, 0o644, "chmod 600"),
        ("", 0o600, "empty"),
        ("short", 0o600, "16 to 512"),
        ("ü" * 20, 0o600, "printable"),
    ],
)
def test_unsafe_token_file_is_refused(tmp_path: Path, text: str, mode: int, reason: str) -> None:
    path = tmp_path / "token"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=reason):
        read_token_file(path)


def test_content_policy_permits_nothing_from_elsewhere() -> None:
    assert "default-src 'none'" in CONTENT_POLICY
    assert "unsafe" not in CONTENT_POLICY
    assert "http" not in CONTENT_POLICY
    assert "*" not in CONTENT_POLICY
