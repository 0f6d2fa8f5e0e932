"""Frames for a consumer that may not use shared memory: read off a bridge's payload stream (wire §5).

A producer that answers a hello with a `payload_fallback_uri` names the streams of a bridge. `Fallback`
listens there and puts frames together in memory of this process alone; frames and arrays are those of any
other consumer. No SHM driver is needed.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlsplit

from .. import _native
from ..client import Consumer
from ..client.standalone import StandaloneProducer
from ..context.context import Context
from ..errors import ConfigError
from ..runtime.runner import Runner
from ..shm import parse_pools
from ..transport import descriptor_channel
from .config import MAX_CHUNK_BYTES, MAX_PAYLOAD_BYTES
from .routes import Endpoint
from .state import DestinationState, Layout

_LOG = logging.getLogger(__name__)
_SCHEME: Final = "bridge"
_KEYS: Final = ("payload", "payload_stream", "control", "control_stream", "stream")
# Above every range that configurations have, and different for each: nobody else's memory is meant.
_FIRST_ID: Final = 0xF000_0000
_IDS: Final = 0x0FFF_FF00
_TIMEOUT_NS: Final = 250_000_000


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
        parts = urlsplit(text)
        if parts.scheme != _SCHEME or not parts.netloc:
            raise ConfigError(f"fallback {text!r}: use bridge://<id>?payload=…")
        found = dict(parse_qsl(parts.query, keep_blank_values=True))
        if missing := [key for key in _KEYS if not found.get(key)]:
            raise ConfigError(f"fallback {text!r}: {', '.join(missing)} is missing")
        for key in ("payload", "control"):
            if not found[key].startswith("aeron:"):
                raise ConfigError(f"fallback {text!r}: {key} {found[key]!r} is no Aeron channel")
        return cls(
            instance_id=parts.netloc,
            payload=Endpoint(found["payload"], _number(text, found, "payload_stream", 1 << 31)),
            control=Endpoint(found["control"], _number(text, found, "control_stream", 1 << 31)),
            stream_id=_number(text, found, "stream", 0xFFFF_FFFF),
        )

    def __str__(self) -> str:
        values = (
            self.payload.channel,
            self.payload.stream_id,
            self.control.channel,
            self.control.stream_id,
            self.stream_id,
        )
        query = "&".join(
            f"{key}={quote(str(value), safe='')}" for key, value in zip(_KEYS, values, strict=True)
        )
        return f"{_SCHEME}://{self.instance_id}?{query}"


def _number(text: str, found: Mapping[str, str], key: str, end: int) -> int:
    value = found[key]
    if not value.isascii() or not value.isdecimal() or len(value) > 10 or not 0 < int(value) < end:
        raise ConfigError(f"fallback {text!r}: {key} {value!r} is no stream id")
    return int(value)


class Fallback:
    """Receives until it is closed; `consumer` gives the frames.

    with Fallback(ctx, uri) as frames:
        for frame in frames: ...
    """

    def __init__(
        self,
        ctx: Context,
        uri: str | FallbackUri,
        *,
        integrity: bool = False,
        max_bytes: int = 1 << 30,
        **consumer: Any,
    ) -> None:
        self.uri = FallbackUri.parse(uri) if isinstance(uri, str) else uri
        self.name = f"fallback-{self.uri.stream_id}"
        self._ctx = ctx
        self._namespace = f"fallback-{secrets.token_hex(8)}"
        self._private_id = _FIRST_ID + secrets.randbelow(_IDS)
        self._state = DestinationState((self._private_id,), layout=None, as_source=True, max_bytes=max_bytes)
        self._producer: StandaloneProducer | None = None
        self._receiver = _native.BridgeReceiver(
            ctx._conductor,
            self.uri.payload.channel,
            self.uri.payload.stream_id,
            self.uri.control.channel,
            self.uri.control.stream_id,
            chunk_bytes=MAX_CHUNK_BYTES,
            max_payload_bytes=MAX_PAYLOAD_BYTES,
            timeout_ns=_TIMEOUT_NS,
            silence_ns=5 * ctx._announce_period_ns,
            integrity=integrity,
        )
        self._receiver.add(self.uri.stream_id, self._private_id)
        try:
            self.consumer = Consumer(
                ctx._conductor,
                stream_id=self._private_id,
                descriptor_channel="aeron:ipc",
                descriptor_stream_id=ctx.stream_ids.descriptor,
                max_outstanding_seq_gap=256,
                freshness_ns=3 * ctx._announce_period_ns,
                hello_period_ns=ctx._streams.period_ns,
                wanted=ctx._streams.wishes(),
                idle="backoff",
                latest_only=False,
                **consumer,
            )
            self._runner = Runner(self)
            self._runner.start()
        except BaseException:
            self._receiver.close()
            raise

    # --- an agent of its own

    def do_work(self) -> int:
        standing = self._receiver.standing(self.uri.stream_id)
        if standing["epoch"] is None:
            return 0
        strides = tuple(sorted(stride for _, stride in standing["pools"]))
        step = self._state.next(
            0, Layout(standing["nslots"], strides), has_destination=standing["has_destination"]
        )
        if step is None or step.layout is None:
            return 0
        before, self._producer = self._producer, None
        if before is not None:
            before.close()
        ctx = self._ctx
        self._producer = StandaloneProducer.create(
            ctx._conductor,
            self._private_id,
            base=ctx._base,
            namespace=self._namespace,
            nslots=step.layout.nslots,
            pools=parse_pools(list(step.layout.strides)),
            descriptor_channel=descriptor_channel(1 << 20),
            descriptor_stream_id=ctx.stream_ids.descriptor,
            announce_period_ns=ctx._announce_period_ns,
            streams=ctx._streams,
            publish_timestamps=False,
            prefault=False,
        )
        self._receiver.give(self.uri.stream_id, self._producer)
        self._state.attached()
        _LOG.info("stream %d falls back to %s", self.uri.stream_id, self.uri.payload)
        return 1

    def on_close(self) -> None:
        # The native loop stops before the memory that it writes to goes.
        self._receiver.close()
        if self._producer is not None:
            self._producer.close()

    def standing(self) -> dict[str, Any]:
        """What the source announced, and what became of its frames."""
        return self._receiver.standing(self.uri.stream_id)

    def close(self) -> None:
        self.consumer.close()
        self._runner.close()

    def __enter__(self) -> Consumer:
        return self.consumer

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
