"""The recorder: writes live streams into a recording and accounts for every sequence.

Only settings are imported here. `record` imports the writer and Arrow when it is called.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..client.options import check_keywords
from ..errors import ConfigError
from ..units import parse_duration, parse_size
from .config import RecorderSettings

if TYPE_CHECKING:
    from ..context import Context
    from .recorder import Recorder

__all__ = ["record"]


def record(
    root: str | os.PathLike[str],
    *,
    streams: Sequence[int | str] | None = None,
    services: bool = False,
    context: Context | None = None,
    frames: int | None = None,
    pre_trigger: str | float | None = None,
    buffer: str | int = "256MiB",
    rotate_bytes: str | int = "256MiB",
    rotate_time: str | float = "60s",
    retain_bytes: str | int | None = None,
    retain_age: str | float | None = None,
    archive: str | None = None,
    keep_free: str | int = "64MiB",
    instance: str = "",
    serve: bool = True,
    **connection: Any,
) -> Recorder:
    """Record streams into the directory `root` until the recorder is closed.

        with tp.record("recording", streams=[10000]) as recorder:
            ...

    The directory is created; an existing recording is continued. `streams` are ids or names of streams; a
    name must exist already. None records every stream that is announced. `services` records the accepted
    commands of all services too; with `streams=[]` nothing else. Times are seconds or texts ("10s"), sizes
    are bytes or texts ("256MiB").
    `pre_trigger` keeps the frames of that time in memory and writes nothing until `recorder.trigger()`.
    `frames` ends the recording after that many frames. `retain_bytes` and `retain_age` remove the oldest
    segments. `archive` is a URI (`s3://…`) to which sealed segments are pushed; retention then waits for it.
    Without a `context` the recorder opens its own with the remaining arguments (`aeron_dir=…`).
    """
    _check_keywords(connection, has_context=context is not None)
    if isinstance(streams, str | int):
        raise ConfigError(f"streams {streams!r}: use a list, as in streams=[{streams!r}]")
    if streams is not None and not streams and not services:
        raise ConfigError("streams: give at least one id, or None for all announced streams")
    if frames is not None and frames < 1:
        raise ConfigError(f"frames {frames}: use 1 or more")
    settings = RecorderSettings(
        out=Path(root),
        streams=tuple(streams or ()),
        all=streams is None,
        services=services,
        instance=instance,
        buffer_bytes=_parse_size("buffer", buffer),
        rotate_bytes=_parse_size("rotate_bytes", rotate_bytes),
        rotate_time_ns=_parse_time("rotate_time", rotate_time),
        pre_trigger_ns=None if pre_trigger is None else _parse_time("pre_trigger", pre_trigger),
        retain_bytes=None if retain_bytes is None else _parse_size("retain_bytes", retain_bytes),
        retain_age_ns=None if retain_age is None else _parse_time("retain_age", retain_age),
        archive=archive,
        keep_free_bytes=_parse_size("keep_free", keep_free, minimum=0),
    )
    # Imported here: the import of Arrow takes longer than all checks above.
    from ..context import open as open_context
    from .recorder import Recorder

    opened = open_context(**connection) if context is None else context
    return Recorder(opened, settings, frames=frames, serve=serve, owns_context=context is None)


def _check_keywords(connection: Mapping[str, object], *, has_context: bool) -> None:
    """Raises for a keyword that `record` does not have, or that belongs to an open context."""
    from ..context import open as open_context

    own = [name for name in signature(record).parameters if name not in ("root", "connection")]
    to_open = signature(open_context).parameters
    if has_context and (late := next((name for name in connection if name in to_open), None)):
        raise ConfigError(f"{late}: not together with a context, which is open; give it to tensorpool.open()")
    check_keywords("record", connection, own if has_context else [*own, *to_open])


def _parse_size(name: str, value: str | int, minimum: int = 1) -> int:
    try:
        size = parse_size(value)
    except ConfigError as error:
        raise ConfigError(f"{name} {value!r}: {error}") from None
    if size < minimum:
        raise ConfigError(f"{name} {value!r}: use at least {minimum}")
    return size


def _parse_time(name: str, value: str | float) -> int:
    try:
        ns = parse_duration(value) if isinstance(value, str) else int(value * 1e9)
    except ConfigError as error:
        raise ConfigError(f"{name} {value!r}: {error}") from None
    if ns < 1:
        raise ConfigError(f"{name} {value!r}: use a time greater than zero")
    return ns
