"""Attributes as bytes and as Python values, and the `Metadata` mapping of a frame (wire §10.3.2). Pure."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ..sbe import Attribute
from .extension_types import DTYPE_KEY, Extension, extension

TEXT: Final = "text/plain"
JSON: Final = "application/json"
OCTETS: Final = "application/octet-stream"
NPY: Final = "application/x-npy"
TAGS_KEY: Final = "tensorpool.tags"
BLOBS_KEY: Final = "tensorpool.blobs"
"""The blobs of a version: blob type → the metadata version that set it."""


def attribute(key: str, value: Any) -> Attribute:
    """An attribute of a value: text, bytes, an array, `(format, bytes)`, or a value that JSON can express."""
    if not key or not str(key).isascii():
        raise ValueError(f"metadata key {key!r}: use plain ASCII text, as in 'camera_serial'")
    match value:
        case str():
            form, data = TEXT, value.encode()
        case bytes() | bytearray() | memoryview():
            form, data = OCTETS, bytes(value)
        case (str() as form, (bytes() | bytearray() | memoryview()) as data):
            if not form.isascii():
                raise ValueError(f"metadata {key!r}: the format {form!r} is not plain ASCII")
            data = bytes(data)
        case np.ndarray():
            form, data = NPY, _npy(key, value)
        case _:
            form, data = JSON, _json(key, value)
    return Attribute(key=key, format=form, value=data)


def _json(key: str, value: Any) -> bytes:
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"), default=_plain).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"metadata {key!r} cannot be written as JSON ({error}); pass (format, bytes) for other formats"
        ) from None


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _npy(key: str, array: npt.NDArray[Any]) -> bytes:
    if array.dtype.hasobject:
        raise ValueError(f"metadata {key!r}: an array of Python objects has no bytes; use a numeric dtype")
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


class Metadata(Mapping[str, Any]):
    """The attributes of one metadata version, decoded at first access.

    Text is `str`, JSON its Python value, an array is read-only. Other formats, and values that do not match
    their format, are bytes. `raw(key)` returns format and bytes.
    """

    __slots__ = ("_raw", "_values", "timestamp_ns", "version")

    def __init__(self, attributes: list[tuple[str, str, bytes]], version: int, timestamp_ns: int) -> None:
        self._raw = {key: (form, value) for key, form, value in attributes}
        self._values: dict[str, object] = {}
        self.version = version
        """The number of the version within its epoch."""
        self.timestamp_ns = timestamp_ns
        """The time of the version on the producer's clock."""

    def __getitem__(self, key: str) -> Any:
        if key not in self._values:
            self._values[key] = _decoded(*self._raw[key])
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._raw)

    def __len__(self) -> int:
        return len(self._raw)

    def __contains__(self, key: object) -> bool:
        return key in self._raw

    def raw(self, key: str) -> tuple[str, bytes]:
        """Format and bytes as received."""
        return self._raw[key]

    def __repr__(self) -> str:
        return f"<Metadata version={self.version} {dict(self)!r}>"


def _decoded(form: str, value: bytes) -> Any:
    kind = form.partition(";")[0].strip().lower()
    try:
        if kind == TEXT:
            return value.decode()
        if kind == JSON:
            return json.loads(value)
        if kind == NPY:
            return _array(value)
    except Exception:
        # The bytes are untrusted, and numpy parses an array header with Python's parser, which may raise any
        # error.
        pass
    return value


def _array(value: bytes) -> npt.NDArray[Any]:
    """The array as a view of the bytes. `numpy.load` would allocate any size that the header claims."""
    file = io.BytesIO(value)
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, is_fortran, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("an array of Python objects has no bytes")
    flat = np.frombuffer(value, dtype, offset=file.tell())
    return flat.reshape(shape, order="F" if is_fortran else "C")


def describe(
    attributes: list[tuple[str, str, bytes]], version: int, timestamp_ns: int
) -> tuple[Metadata, Extension | None]:
    """The metadata of a version's frames, and their extension type; None for types of the wire."""
    metadata = Metadata(attributes, version, timestamp_ns)
    dtype = metadata.get(DTYPE_KEY)
    return metadata, extension(dtype) if isinstance(dtype, str) else None
