"""Attributes in and out, and what a description makes of changes."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensorpool as tp
from tensorpool.attributes import dtypes
from tensorpool.attributes.metadata import BLOBS_KEY, TAGS_KEY, Metadata, attribute, describe
from tensorpool.client.metadata import SourceDescription
from tensorpool.sbe import Attribute, DataSourceAnnounce, DataSourceMeta

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=20)


def shown(*attributes: Attribute) -> Metadata:
    return Metadata([(one.key, one.format, one.value) for one in attributes], 1, 0)


def there_and_back(value: Any) -> Any:
    return shown(attribute("key", value))["key"]


@given(VALUES | st.binary())
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    assert there_and_back(value) == value


@pytest.mark.parametrize(
    ("value", "form"),
    [
        ("Süd", "text/plain"),
        ({"fx": 1.5}, "application/json"),
        (7, "application/json"),
        (np.float32(1.5), "application/json"),
        (b"\x00\xff", "application/octet-stream"),
        (memoryview(b"abc"), "application/octet-stream"),
        (np.eye(3), "application/x-npy"),
        (("application/msgpack", b"\x81"), "application/msgpack"),
        (("sbe:900.8", bytearray(b"x")), "sbe:900.8"),
    ],
)
def test_each_value_has_the_format_that_suits_it(value: Any, form: str) -> None:
    assert attribute("key", value).format == form


@pytest.mark.parametrize(
    "array", [np.eye(3), np.arange(6).reshape(2, 3).T, np.zeros((0, 4), "f2"), np.array(5)]
)
def test_an_array_comes_back_read_only(array: np.ndarray) -> None:
    back = there_and_back(array)
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    assert (back == array).all()
    assert not back.flags.writeable


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, object(), np.array([object()]), [b"bytes in JSON"]])
def test_what_cannot_be_written_is_refused_by_its_key(value: Any) -> None:
    with pytest.raises(ValueError, match="metadata 'calib'"):
        attribute("calib", value)


@pytest.mark.parametrize("key", ["", "größe"])
def test_a_key_is_plain_text(key: str) -> None:
    with pytest.raises(ValueError, match="plain ASCII"):
        attribute(key, 1)


FORMS = ["text/plain", "application/json", "Text/Plain; charset=utf-8", "application/x-npy", "", "x/y"]


@given(st.sampled_from(FORMS), st.binary() | st.binary().map(lambda tail: b"\x93NUMPY\x01\x00" + tail))
def test_whatever_comes_from_outside_has_a_value(form: str, value: bytes) -> None:
    found = Metadata([("key", form, value)], 1, 0)
    assert found.raw("key") == (form, value)
    assert isinstance(found["key"], object)
    assert repr(found)


def npy(header: bytes) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(8)


@given(st.data())
def test_a_broken_array_has_a_value_too(data: st.DataObject) -> None:
    """Every error that numpy makes of a header: a SyntaxError, a TokenError, a TypeError, and more."""
    value = bytearray(attribute("key", np.eye(2)).value)
    for _ in range(data.draw(st.integers(1, 4))):
        value[data.draw(st.integers(10, 70))] = data.draw(st.sampled_from(b"(){}[],:'\"<f0- \n\\\xff"))
    found = Metadata([("key", "application/x-npy", bytes(value))], 1, 0)["key"]
    assert isinstance(found, np.ndarray) or found == value


@pytest.mark.parametrize(
    "header",
    [
        b"{'descr': '<f8', 'fortran_order': False, 'shape': (",
        b"  x\n y",
        b"{1: 2, 'a': 3}",
        b"{[]: 1}",
        b"(" * 9000,
        b"{'descr': ('<f8', (99999999999999999999,)), 'fortran_order': False, 'shape': ()}",
        b"{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999999999999,)}",
    ],
)
def test_a_type_that_is_told_by_a_broken_array_is_none(header: bytes) -> None:
    found, extension = describe([("tensorpool.dtype", "application/x-npy", npy(header))], 1, 0)
    assert (found["tensorpool.dtype"], extension) == (npy(header), None)


def test_what_is_not_what_its_format_says_comes_as_bytes() -> None:
    deep = b"[" * (10 * sys.getrecursionlimit())
    liar = attribute("key", np.zeros(4)).value.replace(b"(4,)", b"(9,)")
    for form, value in [
        ("text/plain", b"\xff"),
        ("application/json", b"{"),
        ("application/json", deep),
        ("application/x-npy", b""),
        ("application/x-npy", liar),
    ]:
        assert Metadata([("key", form, value)], 1, 0)["key"] == value


def test_a_mapping_that_cannot_be_changed() -> None:
    found = shown(attribute("a", 1), attribute("b", "x"))
    assert dict(found) == {"a": 1, "b": "x"} == found
    assert ("a" in found, "z" in found, found.get("z"), len(found)) == (True, False, None, 2)
    with pytest.raises(TypeError):
        found["a"] = 2  # type: ignore[index]
    with pytest.raises(KeyError):
        found["z"]


# --- element types


def test_only_types_that_we_name_are_believed() -> None:
    def extension(value: Any) -> Any:
        one = attribute("tensorpool.dtype", value)
        return describe([(one.key, one.format, one.value)], 1, 0)[1]

    assert extension("float16") == ("uint16", np.dtype("float16"), False)
    assert extension("complex128") == ("float64", np.dtype("complex128"), True)
    for name in ("object", "O", "float64", "S8", "", "no such type", 5, ["float16"]):
        assert extension(name) is None


def test_every_carried_type_has_a_carrier_of_its_size() -> None:
    for name, carried in dtypes.CARRIERS.items():
        found = dtypes.extension(name)
        if found is None:
            assert name.startswith(("bfloat", "float8")), "only ml_dtypes may be missing"
            continue
        carrier, dtype, pair = found
        assert carrier == carried.name
        assert dtype.itemsize == np.dtype(carrier).itemsize * (2 if pair else 1)
        assert dtypes.name_of(dtype) == name


def test_a_type_that_is_not_there_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dtypes, "_dtype", lambda name: None)
    dtypes.extension.cache_clear()
    try:
        with pytest.raises(tp.UnsupportedDtype, match="ml_dtypes"):
            SourceDescription(dtype="float8_e5m2")
    finally:
        dtypes.extension.cache_clear()
    with pytest.raises(tp.UnsupportedDtype, match="float16"):
        SourceDescription(dtype="float128")


# --- a source's own words


def told(description: SourceDescription) -> tuple[DataSourceAnnounce, DataSourceMeta]:
    announce, meta = description.messages(9)
    return DataSourceAnnounce.decode(announce), DataSourceMeta.decode(meta)


def attributes(description: SourceDescription) -> dict[str, Any]:
    return dict(shown(*told(description)[1].attributes))


def test_name_tags_and_type_travel_with_the_attributes() -> None:
    said = SourceDescription(
        name="Kamera Süd", summary="480x640", tags=["lab", "ir"], metadata={"a": 1}, dtype="f2"
    )
    said.bump(5)
    announce, meta = told(said)
    assert announce.name.encode("ascii", "surrogateescape").decode() == "Kamera Süd"
    assert (announce.summary, announce.stream_id, announce.meta_version) == ("480x640", 9, 1)
    assert (meta.stream_id, meta.meta_version, meta.timestamp_ns) == (9, 1, 5)
    assert attributes(said) == {TAGS_KEY: ["lab", "ir"], "tensorpool.dtype": "float16", "a": 1}
    assert meta.attributes[0] == Attribute(key=TAGS_KEY, format="application/json", value=b'["lab","ir"]')


@given(st.lists(st.dictionaries(KEYS, VALUES, max_size=3), max_size=8))
def test_a_version_counts_changes_and_nothing_else(sets: list[dict[str, Any]]) -> None:
    said, before = SourceDescription(), None
    for number, given_set in enumerate(sets):
        version = said.version
        changed = said.change(given_set, name=None, summary=None, now_ns=number)
        same = before is not None and json.dumps(before) == json.dumps(given_set)
        assert changed is not same
        assert said.version == version + (not same)
        assert attributes(said) == given_set
        before = given_set


def test_blobs_are_told_by_the_version_at_which_they_were_set() -> None:
    said = SourceDescription(metadata={"a": 1})
    said.bump(1)
    assert BLOBS_KEY not in attributes(said)
    said.change_blob(7, True, 2)
    said.change_blob(8, True, 3)
    assert attributes(said)[BLOBS_KEY] == {"7": 2, "8": 3}
    said.change_blob(7, False, 4)
    said.change_blob(8, False, 5)
    assert attributes(said) == {BLOBS_KEY: {}, "a": 1}


def test_a_type_may_change_unless_it_was_fixed() -> None:
    free, fixed = SourceDescription(metadata={}), SourceDescription(dtype="float16")
    assert [free.declares(n) for n in ("float16", "complex64", "float32")] == [True, True, False]
    assert [fixed.declares(n) for n in ("float16", "complex64")] == [True, False]
    free.declare("float16", 1)
    free.declare("float16", 2)
    free.declare("complex64", 3)
    assert (free.version, attributes(free)) == (2, {"tensorpool.dtype": "complex64"})


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"metadata": {TAGS_KEY: []}}, "tags="),
        ({"metadata": {BLOBS_KEY: {}}}, "set_blob"),
        ({"metadata": {"tensorpool.dtype": "float16"}}, "dtype="),
        ({"name": "x" * 2000}, "too long"),
        ({"summary": "Süd"}, "ASCII"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SourceDescription(**wrong)


def test_versions_never_become_0_or_the_null_value() -> None:
    said = SourceDescription()
    said.version = 0xFFFF_FFFD
    said.bump(1)
    assert said.version == 0xFFFF_FFFE
    said.bump(2)
    assert said.version == 1
