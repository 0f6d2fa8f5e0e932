"""What a producer says of itself: attributes, name, tags, element type, and the version that counts them.

Pure: changes in, messages out. `describing.py` has the producer that sends them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy.typing as npt

from ..attributes.dtypes import CARRIED, DTYPE_KEY, Extension, extension, name_of
from ..attributes.metadata import BLOBS_KEY, TAGS_KEY, attribute
from ..errors import UnsupportedDtype
from ..sbe import Attribute, DataSourceAnnounce, DataSourceMeta

_MAX_ATTRIBUTES: Final = 0xFFFE
_MAX_NAME_BYTES: Final = 1024
_OURS: Final = {
    TAGS_KEY: "ctx.producer(..., tags=)",
    DTYPE_KEY: "ctx.producer(..., dtype=)",
    BLOBS_KEY: "set_blob",
}


class Description:
    """The words of one source. `version` is 0 until something was said."""

    def __init__(
        self,
        *,
        name: str | None = None,
        summary: str | None = None,
        tags: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
        dtype: npt.DTypeLike | None = None,
    ) -> None:
        self.version = 0
        self.given: dict[str, Any] = {}
        self.name, self.summary = _name(name or ""), _summary(summary or "")
        self.fixed_dtype: str | None = None
        self.extension: Extension | None = None
        self._tags = [attribute(TAGS_KEY, list(tags))] if tags else []
        self._user: list[Attribute] = []
        self._dtype: list[Attribute] = []
        self._blobs: dict[str, int] | None = None
        self._timestamp_ns = 0
        self._set_user(metadata or {})
        if dtype is not None:
            self.fixed_dtype = name_of(dtype)
            self._set_dtype(self.fixed_dtype)

    def _set_user(self, metadata: Mapping[str, Any]) -> bool:
        for key in metadata:
            if key in _OURS:
                raise ValueError(f"metadata key {key!r} is written by {_OURS[key]}")
        if len(metadata) > _MAX_ATTRIBUTES:
            raise ValueError(f"{len(metadata)} attributes; a message has room for {_MAX_ATTRIBUTES}")
        made = [attribute(key, value) for key, value in metadata.items()]
        changed = made != self._user
        self._user, self.given = made, dict(metadata)
        return changed

    def _set_dtype(self, name: str) -> None:
        found = extension(name)
        if found is None:
            why = "needs the package ml_dtypes" if name in CARRIED else "has no place in the registry"
            raise UnsupportedDtype(
                f"element type {name} {why}; carried by metadata are {', '.join(CARRIED)}", dtype=name
            )
        self.extension, self._dtype = found, [attribute(DTYPE_KEY, name)]

    def declares(self, name: str) -> bool:
        """Whether frames may be of that type; what was fixed at the start stays."""
        return extension(name) is not None and self.fixed_dtype in (None, name)

    def declare(self, name: str, now_ns: int) -> None:
        if self.extension is None or self.extension[1].name != name:
            self._set_dtype(name)
            self.bump(now_ns)

    def change(
        self, metadata: Mapping[str, Any], *, name: str | None, summary: str | None, now_ns: int
    ) -> bool:
        """Another set of attributes; what is the same needs no version of its own."""
        named = (
            self.name if name is None else _name(name),
            self.summary if summary is None else _summary(summary),
        )
        changed = self._set_user(metadata) or named != (self.name, self.summary)
        self.name, self.summary = named
        changed = changed or self.version == 0
        if changed:
            self.bump(now_ns)
        return changed

    def change_blob(self, blob_type: int, is_there: bool, now_ns: int) -> None:
        """Frames of the next version go with another blob, or with none of that type."""
        self.bump(now_ns)
        rest = {key: at for key, at in (self._blobs or {}).items() if key != str(blob_type)}
        self._blobs = {**rest, str(blob_type): self.version} if is_there else rest

    def bump(self, now_ns: int) -> None:
        # 0 is none, and all ones is null on the wire.
        self.version = 1 if self.version >= 0xFFFF_FFFE else self.version + 1
        self._timestamp_ns = now_ns

    def messages(self, stream_id: int) -> tuple[bytes, bytes]:
        """The announce, whose producer and epoch are filled in when it is sent, and the attributes."""
        announce = DataSourceAnnounce(
            stream_id=stream_id,
            producer_id=0,
            epoch=0,
            meta_version=self.version,
            # Carried byte for byte, so that a name may have any letters.
            name=self.name.encode().decode("ascii", "surrogateescape"),
            summary=self.summary,
        )
        blobs = () if self._blobs is None else (attribute(BLOBS_KEY, self._blobs),)
        meta = DataSourceMeta(
            stream_id=stream_id,
            meta_version=self.version,
            timestamp_ns=self._timestamp_ns,
            attributes=(*self._tags, *self._dtype, *blobs, *self._user),
        )
        return announce.encode(), meta.encode()


def _name(name: str) -> str:
    if len(name.encode()) > _MAX_NAME_BYTES:
        raise ValueError(f"a name of {len(name)} letters is too long; use {_MAX_NAME_BYTES} bytes at most")
    return name


def _summary(summary: str) -> str:
    if not summary.isascii() or len(summary) > _MAX_NAME_BYTES:
        raise ValueError(f"summary {summary!r}: use plain ASCII text of at most {_MAX_NAME_BYTES} letters")
    return summary
