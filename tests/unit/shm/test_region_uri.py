"""The grammar of region URIs (wire §15.22)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorpool._native import parse_region_uri

# Every visible ASCII character except the two separators of the grammar.
PATH_CHARACTERS = "".join(chr(c) for c in range(0x21, 0x7F) if chr(c) not in "?|")


def parts(uri: str) -> tuple[str, bool]:
    parsed = parse_region_uri(uri)
    return parsed.path, parsed.require_hugepages


@pytest.mark.requirement("wire-15.22-4")
@pytest.mark.parametrize(
    ("uri", "path", "hugepages"),
    [
        ("shm:file?path=/dev/shm/a", "/dev/shm/a", False),
        ("shm:file?path=/dev/hugepages/a|require_hugepages=true", "/dev/hugepages/a", True),
        ("shm:file?path=/a|require_hugepages=false", "/a", False),
        ("shm:file?path=/a&b=c;d", "/a&b=c;d", False),
    ],
)
def test_region_uri_has_a_path_and_optional_hugepages(uri, path, hugepages) -> None:
    assert parts(uri) == (path, hugepages)


@settings(deadline=None)
@given(st.text(PATH_CHARACTERS, max_size=60), st.sampled_from(["", "|require_hugepages=true"]))
def test_region_uri_path_accepts_every_visible_character(tail, demand) -> None:
    assert parts(f"shm:file?path=/{tail}{demand}") == (f"/{tail}", bool(demand))


@pytest.mark.requirement("wire-15.22-12")
@settings(deadline=None)
@given(st.text(max_size=80))
def test_arbitrary_text_is_never_accepted_as_region_uri(text) -> None:
    try:
        path, hugepages = parts(text)
    except ValueError:
        return
    assert text in {
        f"shm:file?path={path}",
        f"shm:file?path={path}|require_hugepages={str(hugepages).lower()}",
    }


@pytest.mark.requirement("wire-15.22-4", "wire-15.22-5", "wire-15.22-6", "wire-15.22-11", "wire-15.22-12")
@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("", "unknown scheme"),
        ("shm:anon?path=/a", "unknown scheme"),
        ("shm:file:path=/a", "unknown scheme"),
        ("Shm:file?path=/a", "unknown scheme"),
        (" shm:file?path=/a", "unknown scheme"),
        ("shm:file?", "must be path="),
        ("shm:file?path=", "must be path="),
        ("shm:file?PATH=/a", "must be path="),
        ("shm:file?require_hugepages=true|path=/a", "must be path="),
        ("shm:file?path=/a|unknown=1", "unknown parameter"),
        ("shm:file?path=/a|", "unknown parameter"),
        ("shm:file?path=/a||require_hugepages=true", "unknown parameter"),
        ("shm:file?path=/a|require_hugepages=true|require_hugepages=true", "unknown parameter"),
        ("shm:file?path=/a|path=/b", "unknown parameter"),
        ("shm:file?path=/a|require_hugepages=", "true or false"),
        ("shm:file?path=/a|require_hugepages=1", "true or false"),
        ("shm:file?path=/a|require_hugepages=True", "true or false"),
        ("shm:file?path=/a b", "not allowed in the path"),
        ("shm:file?path=/a?b", "not allowed in the path"),
        ("shm:file?path=/a\nb", "not allowed in the path"),
        ("shm:file?path=/\x7f", "not allowed in the path"),
        ("shm:file?path=/é", "not allowed in the path"),
        ("shm:file?path=/" + "a" * 5000, "longer than"),
    ],
)
def test_invalid_region_uri_is_refused_with_the_reason(uri, reason) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_region_uri(uri)


@pytest.mark.requirement("wire-15.22-1")
@pytest.mark.parametrize("path", ["a", "./a", "../a", "~/a", r"C:\aeron\a", r"\\.\pipe\a", r"Local\a"])
def test_region_uri_without_absolute_path_is_refused(path) -> None:
    with pytest.raises(ValueError, match="not absolute"):
        parse_region_uri(f"shm:file?path={path}")
