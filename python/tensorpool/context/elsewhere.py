"""Streams whose driver is on another machine (discovery §9): read off the bridge that a tag names.

What a bridge has brought into this machine's memory is a stream of the driver here, and no concern of this
module. The tag comes from outside, so of its channels only what a subscriber needs is taken.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, urlsplit

from ..client import Consumer
from ..discovery import DiscoveredStream
from ..discovery.channels import Channel
from ..errors import ConfigError, StreamNotLocal

if TYPE_CHECKING:
    from .context import Context

_LOOK_S: Final = 0.005
# Whatever else a channel can say concerns sockets, files and limits of this machine: not a stranger's affair.
_TAKEN: Final = frozenset({"endpoint", "control", "control-mode", "interface", "reliable", "alias"})


def uri_fault(uri: str) -> str | None:
    """Why a fallback URI that was found is not followed."""
    try:
        words = parse_qs(urlsplit(uri).query, strict_parsing=True)
    except ValueError as error:
        return str(error)
    for key in ("payload", "control"):
        channel = Channel.parse(words.get(key, [""])[0])
        if channel is None or channel.media != "udp" or not channel.parameters.keys() <= _TAKEN:
            return f"its {key} channel is none to be followed"
    return None


def read_off_bridge(
    ctx: Context, stream: DiscoveredStream, uri: str, deadline: float, attach: Callable[..., Consumer]
) -> Consumer | StreamNotLocal:
    """A consumer of what the bridge sends; or why not. It is there once the bridge has announced the epoch
    that was found: a way that nobody sends on is none."""
    if (fault := uri_fault(uri)) is not None:
        return elsewhere(stream, f"the bridge that it names cannot be used ({fault})")
    try:
        consumer = attach(ctx, fallback_uri=uri)
    except ConfigError as error:
        return elsewhere(stream, f"the bridge that it names cannot be used ({error})")
    # A bridge says again what its source announces. Meanwhile another answer may have become the true one.
    deadline = min(deadline, time.monotonic() + 3 * ctx._announce_period_ns / 1e9)
    try:
        while consumer.epoch != stream.epoch and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
    except BaseException:
        consumer.close()
        raise
    if (heard := consumer.epoch) == stream.epoch:
        return consumer
    consumer.close()
    said = "says nothing" if heard is None else f"has epoch {heard}, and not {stream.epoch}"
    return elsewhere(stream, f"the bridge that it names {said}")


def elsewhere(stream: DiscoveredStream, but: str = "no bridge has brought it here") -> StreamNotLocal:
    return StreamNotLocal(
        f"{stream} is not on this media driver, so that its memory cannot be mapped here, and {but}; run "
        f"tensorpool bridge on both machines with a mapping of source_stream_id {stream.stream_id}, and ask "
        "by the same name",
        stream_id=stream.stream_id,
        driver_instance_id=stream.driver_instance_id,
    )
