"""`ctx.consumer()`: a reader of one stream, with what it wishes for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from .. import _native
from ..client import Consumer
from ..errors import ConfigError
from ..transport import SHARED_CHANNEL
from .endpoints import WithEndpoints, checked_stream_id
from .locate import WithDiscovery, check_by_name


class WithConsumers(WithEndpoints, WithDiscovery):
    """The part of a context that gives out consumers."""

    def consumer(
        self,
        stream_id: int | None = None,
        *,
        name: str | None = None,
        tags: Sequence[str] = (),
        find_timeout: float | None = None,
        policy: Literal["stream", "latest"] = "stream",
        idle: Literal["backoff", "busy-spin", "yield", "sleep"] = "backoff",
        timeout: float | None = None,
        max_rate_hz: int | None = None,
        own_stream: bool = False,
        progress: bool = False,
        progress_interval_us: int | None = None,
        progress_bytes: int | None = None,
        progress_rows: int | None = None,
        own_control: bool = True,
        max_outstanding_seq_gap: int = 256,
        descriptor_stream_id: int | None = None,
        metadata_stream_id: int | None = None,
        fallback_uri: str | None = None,
    ) -> Consumer:
        """A consumer of `stream_id`; it maps the stream when there is one, now or later.

        Or of the stream with that `name`, or with those `tags`: it is looked for (see `discover`) until it is
        there, for `find_timeout` seconds at most (`[discovery] timeout`), and attached to through its own
        driver. Raises StreamNotFound, AmbiguousStream if several streams fit, StreamElsewhere if it is
        another machine's.

        Or of what a bridge sends, `fallback_uri="bridge://…"`: frames come off the network into memory of
        this process alone, without a driver. Phase FALLBACK; the frames are those of any other consumer.

        `timeout` bounds each wait of an iteration. `policy="latest"` always gives the newest frame.
        `max_rate_hz` asks the producer for so many frames a second at most, evenly spaced by their own
        timestamps, on a descriptor stream of this consumer's own; `own_stream` asks for such a stream
        without a limit. A producer may decline: then all frames come on the shared one (event `declined`).
        `progress` asks to hear of frames that are still filling (`consumer.progress()`), at best every
        `progress_interval_us`, and for `progress_bytes` or `progress_rows` more; the producer decides. With
        `own_control=False` it is told on the shared control stream, where others can hear it too.
        """
        self._check_open()
        if fallback_uri is not None:
            if stream_id is not None or name is not None or tags:
                raise ConfigError("fallback_uri names the stream: give neither an id, a name nor tags")
            stream_id = _stream_of(fallback_uri)
        check_by_name(stream_id, name, tags)
        if stream_id is None:
            options: dict[str, Any] = {
                "policy": policy,
                "idle": idle,
                "timeout": timeout,
                "max_rate_hz": max_rate_hz,
                "own_stream": own_stream,
                "progress": progress,
                "progress_interval_us": progress_interval_us,
                "progress_bytes": progress_bytes,
                "progress_rows": progress_rows,
                "own_control": own_control,
                "max_outstanding_seq_gap": max_outstanding_seq_gap,
                "descriptor_stream_id": descriptor_stream_id,
                "metadata_stream_id": metadata_stream_id,
            }
            return self._consumer_by_name(
                name,
                tags,
                find_timeout,
                lambda home, found=None, **way: home.consumer(found, **way, **options),
            )
        if max_outstanding_seq_gap < 0:
            raise ConfigError(f"max_outstanding_seq_gap {max_outstanding_seq_gap}: use 0 or more frames")
        if policy not in ("stream", "latest"):
            raise ConfigError(f"policy {policy!r}: use 'stream' or 'latest'")
        is_alone = self.mode == "standalone" or fallback_uri is not None
        if not is_alone:
            self._learn_period()
        wanted = self._streams.wishes(
            max_rate_hz=max_rate_hz,
            own_stream=own_stream,
            progress=progress,
            progress_interval_us=progress_interval_us,
            progress_bytes=progress_bytes,
            progress_rows=progress_rows,
        )
        if not own_control:
            wanted["control"] = None
        consumer = Consumer(
            self._conductor,
            stream_id=checked_stream_id(stream_id),
            descriptor_channel=SHARED_CHANNEL,
            descriptor_stream_id=self._descriptor_stream(descriptor_stream_id),
            max_outstanding_seq_gap=max_outstanding_seq_gap,
            freshness_ns=3 * self._announce_period_ns,
            hello_period_ns=self._streams.period_ns,
            wanted=wanted,
            idle=idle,
            latest_only=policy == "latest",
            lease=None if is_alone else self._terms.native(may_create=False),
            metadata=self._metadata_ear(metadata_stream_id),
            fallback_uri=fallback_uri,
        )
        consumer._timeout = timeout
        return self._ready(consumer)


def _stream_of(fallback_uri: str) -> int:
    try:
        return _native.parse_fallback(fallback_uri)[3]
    except ValueError as error:
        raise ConfigError(f"fallback_uri {fallback_uri!r}: {error}") from None
