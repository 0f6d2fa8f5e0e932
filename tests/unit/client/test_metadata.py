"""Attributes and their formats, element types, and the messages of a source description."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensorpool as tp
from tensorpool.attributes import extension_types
from tensorpool.attributes.metadata import BLOBS_KEY, TAGS_KEY, Metadata, attribute, describe
from tensorpool.client.metadata import SourceDescription
from tensorpool.sbe import Attribute, DataSourceAnnounce, DataSourceMeta

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=20)


def metadata_of(*attributes: Attribute) -> Metadata:
    return Metadata([(each.key, each.format, each.value) for each in attributes], 1, 0)


def round_trip(value: Any) -> Any:
    return metadata_of(attribute("key", value))["key"]


@given(VALUES | st.binary())
def test_attribute_value_survives_a_round_trip(value: Any) -> None:
    assert round_trip(value) == value


@pytest.mark.parametrize(
    ("value", "media_type"),
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
def test_attribute_format_follows_the_type_of_its_value(value: Any, media_type: str) -> None:
    assert attribute("key", value).format == media_type


@pytest.mark.parametrize(
    "array", [np.eye(3), np.arange(6).reshape(2, 3).T, np.zeros((0, 4), "f2"), np.array(5)]
)
def test_array_attribute_is_read_only_after_a_round_trip(array: np.ndarray) -> None:
    received = round_trip(array)
    assert (received.dtype, received.shape) == (array.dtype, array.shape)
    assert (received == array).all()
    assert not received.flags.writeable


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, object(), np.array([object()]), [b"bytes in JSON"]])
def test_value_that_cannot_be_encoded_is_refused_with_its_key(value: Any) -> None:
    with pytest.raises(ValueError, match="metadata 'calib'"):
        attribute("calib", value)


@pytest.mark.parametrize("key", ["", "größe"])
def test_attribute_key_must_be_ascii_and_not_empty(key: str) -> None:
    with pytest.raises(ValueError, match="plain ASCII"):
        attribute(key, 1)


MEDIA_TYPES = ["text/plain", "application/json", "Text/Plain; charset=utf-8", "application/x-npy", "", "x/y"]


@given(st.sampled_from(MEDIA_TYPES), st.binary() | st.binary().map(lambda tail: b"\x93NUMPY\x01\x00" + tail))
def test_received_attribute_of_any_format_has_a_value(media_type: str, value: bytes) -> None:
    metadata = Metadata([("key", media_type, value)], 1, 0)
    assert metadata.raw("key") == (media_type, value)
    assert isinstance(metadata["key"], object)
    assert repr(metadata)


def npy(header: bytes) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(8)


@given(st.data())
def test_array_with_a_broken_header_has_a_value(data: st.DataObject) -> None:
    """numpy raises many kinds of error for a broken header: SyntaxError, TokenError, TypeError and more."""
    value = bytearray(attribute("key", np.eye(2)).value)
    for _ in range(data.draw(st.integers(1, 4))):
        value[data.draw(st.integers(10, 70))] = data.draw(st.sampled_from(b"(){}[],:'\"<f0- \n\\\xff"))
    metadata = Metadata([("key", "application/x-npy", bytes(value))], 1, 0)["key"]
    assert isinstance(metadata, np.ndarray) or metadata == value


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
def test_element_type_in_a_broken_array_is_ignored(header: bytes) -> None:
    metadata, extension = describe([("tensorpool.dtype", "application/x-npy", npy(header))], 1, 0)
    assert (metadata["tensorpool.dtype"], extension) == (npy(header), None)


def test_value_that_contradicts_its_format_is_returned_as_bytes() -> None:
    deep = b"[" * (10 * sys.getrecursionlimit())
    wrong_shape = attribute("key", np.zeros(4)).value.replace(b"(4,)", b"(9,)")
    for media_type, value in [
        ("text/plain", b"\xff"),
        ("application/json", b"{"),
        ("application/json", deep),
        ("application/x-npy", b""),
        ("application/x-npy", wrong_shape),
    ]:
        assert Metadata([("key", media_type, value)], 1, 0)["key"] == value


def test_metadata_is_a_read_only_mapping() -> None:
    metadata = metadata_of(attribute("a", 1), attribute("b", "x"))
    assert dict(metadata) == {"a": 1, "b": "x"} == metadata
    assert ("a" in metadata, "z" in metadata, metadata.get("z"), len(metadata)) == (True, False, None, 2)
    with pytest.raises(TypeError):
        metadata["a"] = 2  # type: ignore[index]
    with pytest.raises(KeyError):
        metadata["z"]


# --- element types


def test_only_registered_element_types_are_accepted() -> None:
    def extension(value: Any) -> Any:
        element_type = attribute("tensorpool.dtype", value)
        return describe([(element_type.key, element_type.format, element_type.value)], 1, 0)[1]

    assert extension("float16") == ("uint16", np.dtype("float16"), False)
    assert extension("complex128") == ("float64", np.dtype("complex128"), True)
    for name in ("object", "O", "float64", "S8", "", "no such type", 5, ["float16"]):
        assert extension(name) is None


def test_every_carried_element_type_has_a_carrier_of_its_size() -> None:
    for name, carried in extension_types.CARRIERS.items():
        extension = extension_types.extension(name)
        if extension is None:
            assert name.startswith(("bfloat", "float8")), "only ml_dtypes may be missing"
            continue
        carrier, dtype, pair = extension
        assert carrier == carried.name
        assert dtype.itemsize == np.dtype(carrier).itemsize * (2 if pair else 1)
        assert extension_types.name_of(dtype) == name


def test_element_type_without_its_package_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extension_types, "_dtype", lambda name: None)
    extension_types.extension.cache_clear()
    try:
        with pytest.raises(tp.UnsupportedDtype, match="ml_dtypes"):
            SourceDescription(dtype="float8_e5m2")
    finally:
        extension_types.extension.cache_clear()
    with pytest.raises(tp.UnsupportedDtype, match="float16"):
        SourceDescription(dtype="float128")


# --- source descriptions


def messages_of(description: SourceDescription) -> tuple[DataSourceAnnounce, DataSourceMeta]:
    announce, meta = description.messages(9)
    return DataSourceAnnounce.decode(announce), DataSourceMeta.decode(meta)


def attributes(description: SourceDescription) -> dict[str, Any]:
    return dict(metadata_of(*messages_of(description)[1].attributes))


def test_messages_contain_name_tags_and_element_type() -> None:
    description = SourceDescription(
        name="Kamera Süd", summary="480x640", tags=["lab", "ir"], metadata={"a": 1}, dtype="f2"
    )
    description.bump(5)
    announce, meta = messages_of(description)
    assert announce.name.encode("ascii", "surrogateescape").decode() == "Kamera Süd"
    assert (announce.summary, announce.stream_id, announce.meta_version) == ("480x640", 9, 1)
    assert (meta.stream_id, meta.meta_version, meta.timestamp_ns) == (9, 1, 5)
    assert attributes(description) == {TAGS_KEY: ["lab", "ir"], "tensorpool.dtype": "float16", "a": 1}
    assert meta.attributes[0] == Attribute(key=TAGS_KEY, format="application/json", value=b'["lab","ir"]')


@given(st.lists(st.dictionaries(KEYS, VALUES, max_size=3), max_size=8))
def test_metadata_version_counts_changes_only(sets: list[dict[str, Any]]) -> None:
    description, before = SourceDescription(), None
    for number, given_set in enumerate(sets):
        version = description.version
        changed = description.change(given_set, name=None, summary=None, now_ns=number)
        same = before is not None and json.dumps(before) == json.dumps(given_set)
        assert changed is not same
        assert description.version == version + (not same)
        assert attributes(description) == given_set
        before = given_set


def test_metadata_lists_each_blob_with_its_version() -> None:
    description = SourceDescription(metadata={"a": 1})
    description.bump(1)
    assert BLOBS_KEY not in attributes(description)
    description.change_blob(7, True, 2)
    description.change_blob(8, True, 3)
    assert attributes(description)[BLOBS_KEY] == {"7": 2, "8": 3}
    description.change_blob(7, False, 4)
    description.change_blob(8, False, 5)
    assert attributes(description) == {BLOBS_KEY: {}, "a": 1}


def test_element_type_may_change_unless_it_was_fixed() -> None:
    free, fixed = SourceDescription(metadata={}), SourceDescription(dtype="float16")
    assert [free.declares(n) for n in ("float16", "complex64", "float32")] == [True, True, False]
    assert [fixed.declares(n) for n in ("float16", "complex64")] == [True, False]
    free.declare("float16", 1)
    free.declare("float16", 2)
    free.declare("complex64", 3)
    assert (free.version, attributes(free)) == (2, {"tensorpool.dtype": "complex64"})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"metadata": {TAGS_KEY: []}}, "tags="),
        ({"metadata": {BLOBS_KEY: {}}}, "set_blob"),
        ({"metadata": {"tensorpool.dtype": "float16"}}, "dtype="),
        ({"name": "x" * 2000}, "too long"),
        ({"summary": "Süd"}, "ASCII"),
    ],
)
def test_invalid_source_description_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SourceDescription(**arguments)


def test_metadata_version_skips_zero_and_null() -> None:
    description = SourceDescription()
    description.version = 0xFFFF_FFFD
    description.bump(1)
    assert description.version == 0xFFFF_FFFE
    description.bump(2)
    assert description.version == 1
