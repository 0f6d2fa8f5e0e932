"""What a source says of itself, for `tensorpool stream info`."""

from __future__ import annotations

import base64
import json
from typing import Any, Final

import numpy as np

from ..client import Metadata
from ..context import Context

# It is said once a period; who says hello is told at once.
_PERIODS: Final = 1.5
_LONGEST = 200
_JSON_BYTES = 4096


def heard_attributes(ctx: Context, stream_id: int, timeout: float) -> Metadata | None:
    """The newest attributes of the stream; None where nobody tells of any within a period and a half."""
    with ctx.consumer(stream_id) as consumer:
        found = consumer.wait_for_metadata(min(_PERIODS * ctx._announce_period_ns / 1e9, timeout))
    return found if isinstance(found, Metadata) else None


def attribute_rows(found: Metadata | None) -> list[tuple[str, str]]:
    """Names and values as people read them."""
    if found is None:
        return [("metadata", "none")]
    rows = [("metadata", f"version {found.version}, {len(found)} attribute{'s' * (len(found) != 1)}")]
    return [*rows, *((f"  {key}", _words(found[key], found.raw(key)[0])) for key in found)]


def as_json(found: Metadata | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "version": found.version,
        "attributes": {key: _plain(found[key], *found.raw(key)) for key in found},
    }


def _words(value: Any, form: str) -> str:
    if isinstance(value, np.ndarray):
        return f"array {'x'.join(map(str, value.shape))} {value.dtype}"
    if isinstance(value, bytes):
        return f"{len(value)} bytes of {form or 'no format'}"
    text = value if isinstance(value, str) else json.dumps(value)
    # A stranger's text must not steer the terminal.
    shown = "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text[:_LONGEST])
    return shown + ("…" if len(text) > _LONGEST else "")


def _plain(value: Any, form: str, raw: bytes) -> Any:
    """As JSON can hold it: what it cannot hold is told by format, length and, if short, bytes."""
    if not isinstance(value, np.ndarray | bytes):
        return value
    told: dict[str, Any] = {"format": form, "bytes": len(raw)}
    if isinstance(value, np.ndarray):
        told |= {"shape": value.shape, "dtype": str(value.dtype)}
    if len(raw) <= _JSON_BYTES:
        told["base64"] = base64.b64encode(raw).decode()
    return told
