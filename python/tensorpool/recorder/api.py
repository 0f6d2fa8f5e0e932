"""`tensorpool.record(...)`. Nothing heavy is imported before it is called."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from ..units import parse_duration, parse_size
from .config import RecorderSettings

if TYPE_CHECKING:
    from ..context import Context
    from .recorder import Recorder


def record(
    root: str | os.PathLike[str],
    *,
    streams: Sequence[int] | None = None,
    context: Context | None = None,
    frames: int | None = None,
    pre_trigger: str | float | None = None,
    buffer: str | int = "256MiB",
    rotate_bytes: str | int = "256MiB",
    rotate_time: str | float = "60s",
    retain_bytes: str | int | None = None,
    retain_age: str | float | None = None,
    keep_free: str | int = "64MiB",
    instance: str = "",
    serve: bool = True,
    **connection: Any,
) -> Recorder:
    """Records streams into the directory `root`, which is made, or gone on with, until closed.

    with tp.record("recording", streams=[10000]) as recorder:
        ...

    `streams` are ids; None records every stream that is announced. Times are seconds or texts ("10s"),
    sizes are bytes or texts ("256MiB"). `pre_trigger` keeps the last while in memory and writes nothing
    until `recorder.trigger()`. `frames` ends it after so many. `retain_bytes` and `retain_age` let the
    oldest segments go. Without a `context` it opens one of its own, with what else is given
    (`aeron_dir=…`).
    """
    from ..context import open as open_context
    from .recorder import Recorder

    if context is not None and connection:
        raise ConfigError(f"{next(iter(connection))}: the context given has a connection already")
    if streams is not None and not streams:
        raise ConfigError("streams: name at least one, or None for all that are announced")
    if frames is not None and frames < 1:
        raise ConfigError(f"frames {frames}: use 1 or more")
    settings = RecorderSettings(
        out=Path(root),
        streams=tuple(streams or ()),
        all=streams is None,
        instance=instance,
        buffer_bytes=_size("buffer", buffer),
        rotate_bytes=_size("rotate_bytes", rotate_bytes),
        rotate_time_ns=_time("rotate_time", rotate_time),
        pre_trigger_ns=None if pre_trigger is None else _time("pre_trigger", pre_trigger),
        retain_bytes=None if retain_bytes is None else _size("retain_bytes", retain_bytes),
        retain_age_ns=None if retain_age is None else _time("retain_age", retain_age),
        keep_free_bytes=_size("keep_free", keep_free, least=0),
    )
    owned = open_context(**connection) if context is None else None
    return Recorder(
        context or owned,  # type: ignore[arg-type]
        settings,
        frames=frames,
        serve=serve,
        owns_context=owned is not None,
    )


def _size(name: str, value: str | int, least: int = 1) -> int:
    try:
        size = parse_size(value)
    except ConfigError as error:
        raise ConfigError(f"{name} {value!r}: {error}") from None
    if size < least:
        raise ConfigError(f"{name} {value!r}: use at least {least}")
    return size


def _time(name: str, value: str | float) -> int:
    try:
        ns = parse_duration(value) if isinstance(value, str) else int(value * 1e9)
    except ConfigError as error:
        raise ConfigError(f"{name} {value!r}: {error}") from None
    if ns < 1:
        raise ConfigError(f"{name} {value!r}: use more than nothing")
    return ns
