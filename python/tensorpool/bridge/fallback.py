"""Where a consumer that does not use shared memory finds its frames: the streams of a bridge (wire §5).

`ctx.consumer(fallback_uri=…)` reads there from the start. A consumer of shared memory goes there by itself
when it is told to, by a `payload_fallback_uri`, and comes back.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from .. import _native
from ..errors import ConfigError
from .routes import Endpoint, Route


@dataclass(frozen=True, slots=True)
class FallbackUri:
    """`bridge://<id>?payload=…&payload_stream=…&control=…&control_stream=…&stream=…`, percent-encoded."""

    instance_id: str
    payload: Endpoint
    control: Endpoint
    stream_id: int

    @classmethod
    def parse(cls, text: str) -> FallbackUri:
        """Raises ConfigError with what is wrong: it comes from outside."""
        try:
            instance_id, payload, control, stream_id = _native.parse_fallback(text)
        except ValueError as error:
            raise ConfigError(f"fallback {text!r}: {error}") from None
        return cls(instance_id, Endpoint(*payload), Endpoint(*control), stream_id)

    @classmethod
    def of(cls, instance_id: str, route: Route) -> FallbackUri:
        """The way to the frames of a mapping, for whoever can receive on its channels."""
        return cls(
            quote(instance_id, safe="") or "bridge", route.payload, route.control, route.source_stream_id
        )

    def __str__(self) -> str:
        values = {
            "payload": self.payload.channel,
            "payload_stream": self.payload.stream_id,
            "control": self.control.channel,
            "control_stream": self.control.stream_id,
            "stream": self.stream_id,
        }
        query = "&".join(f"{key}={quote(str(value), safe='')}" for key, value in values.items())
        return f"bridge://{self.instance_id}?{query}"
