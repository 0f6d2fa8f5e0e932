"""`tensorpool stream`: the announced streams, their users, rates, contents and metadata."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import click
import numpy as np
from rich.text import Text

from ..client import Metadata
from ..context import Context
from ..errors import TensorPoolError
from ..monitor.listener import StreamKind, SystemMonitor
from ..monitor.snapshot import StreamView
from ..shm.inspect import region_path
from ..text import JsonMapping, JsonValue, safe_text
from ..units import MAX_AERON_STREAM_ID, MAX_U64
from .driver import leases_table
from .options import ConnectOptions, connect_options
from .output import DIM, WARN, columns, console, format_bytes, format_duration, key_values, size_literal
from .params import CommandGroup, StreamRef
from .stream_frames import echo_frames, measure, print_lineage
from .stream_watch import announce_age_ns, announced_streams, watch_streams

_ANNOUNCE_PERIODS: Final = 1.5
"""Every stream is announced once a period; the half period is for late announces."""
_ANNOUNCE_STREAMS: Final = (StreamKind.ANNOUNCE, StreamKind.METADATA)
_WIDE: Final = 100
_MAX_ATTRIBUTE_TEXT: Final = 200
_MAX_BASE64_BYTES: Final = 4096
_STREAM = StreamRef()

if TYPE_CHECKING:
    from ..driver.client import StreamRow

_DriverRows: TypeAlias = "dict[int, StreamRow]"
"""The rows of `streams()` of the driver, by stream id."""

NO_STREAM = "no stream is announced on this media driver"

_EPILOG = """
\b
Examples:
  tensorpool stream ls
  tensorpool stream info 20000
  tensorpool stream watch
  tensorpool stream hz 20000
  tensorpool stream echo 20000 --count 1 --json
  tensorpool stream echo 20000 --image frame.png
  tensorpool stream trace 20002
"""


_LS = """
\b
Examples:
  tensorpool stream ls
  tensorpool stream ls --json | jq '.[].stream_id'
"""

_INFO = """
\b
Examples:
  tensorpool stream info 20000
  tensorpool stream info camera-1
  tensorpool stream info 20000 --json
"""

_WATCH = """
\b
Examples:
  tensorpool stream watch
  tensorpool stream watch --json --period 10 >> rates.jsonl
"""

_HZ = """
\b
Examples:
  tensorpool stream hz 20000
  tensorpool stream hz camera-1 --clock frame --window 500
"""

_ECHO = """
\b
Examples:
  tensorpool stream echo 20000
  tensorpool stream echo 20000 --count 5 --json
  tensorpool stream echo 20000 --image frame.png
  tensorpool stream echo 20000 --image 'frame-{seq}.png' --count 10
"""


_TRACE = """
\b
Examples:
  tensorpool stream trace 20002
  tensorpool stream trace 20002 --count 1 --json
  tensorpool stream trace 7488279306534457344
"""


class NoSuchStream(TensorPoolError, LookupError):
    """The stream is not announced."""


@click.group(cls=CommandGroup, epilog=_EPILOG)
def stream() -> None:
    """Inspect the streams of a running system.

    These commands take no lease and delay no producer. A stream is given by its id or its name.
    """


@stream.command(epilog=_LS)
@connect_options
def ls(to: ConnectOptions) -> None:
    """List the announced streams.

    Receives announces for one and a half periods. With an SHM driver the numbers of leases are shown too:
    producers + consumers.
    """
    from ..driver.client import driver_streams

    with to.context() as ctx, _announce_monitor(ctx) as monitor:
        monitor.watch(min(_ANNOUNCE_PERIODS * monitor.limits.announce_period_ns / 1e9, to.timeout))
        planned = driver_streams(ctx, timeout=to.timeout)
        streams = announced_streams(monitor)
    if to.json_output:
        click.echo(json.dumps([_stream_json(stream, planned) for stream in streams], indent=2))
        return
    if not streams:
        click.echo(NO_STREAM, err=True)
        return
    screen = console()
    heads = ["stream", "name", "producer", "epoch", "slots", "pools", "age", *(["leases"] if planned else [])]
    table = columns(*heads, right=("stream", "slots", "age", "leases"))
    for stream in streams:
        row = [
            str(stream.stream_id),
            _name(stream, planned),
            str(stream.producer_id) if stream.producer_id else Text("none", style=DIM),
            str(stream.epoch) if screen.width >= _WIDE else f"…{stream.epoch % 10**6:06}",
            str(stream.nslots),
            " ".join(size_literal(pool.stride_bytes) for pool in stream.pools),
            format_duration(announce_age_ns(stream) / 1e9),
        ]
        table.add_row(*row, *([_leases(planned.get(stream.stream_id))] if planned else []))
    screen.print(table)


@stream.command(epilog=_INFO)
@click.argument("wanted", metavar="STREAM", type=_STREAM)
@connect_options
def info(to: ConnectOptions, wanted: int | str) -> None:
    """Show a stream: layout, producer, epoch, directory, attributes, and its leases with their ages."""
    from ..driver.client import driver_leases, driver_streams

    with _announced_stream(to, wanted) as (ctx, stream):
        stream_id = stream.stream_id
        planned = driver_streams(ctx, timeout=to.timeout)
        leases = driver_leases(ctx, stream_id, timeout=to.timeout)
        metadata = receive_attributes(ctx, stream_id, to.timeout)
    if to.json_output:
        shown = {**_stream_json(stream, planned), "metadata": _metadata_json(metadata), "leases": leases}
        click.echo(json.dumps(shown, indent=2))
        return
    screen = console()
    screen.print(key_values(_stream_rows(stream, planned, metadata)))
    screen.print()
    if leases is None:
        screen.print(
            Text("no SHM driver answers: the producer owns this stream, and no lease is needed", style=DIM)
        )
    elif not leases:
        screen.print(Text("no leases", style=DIM))
    else:
        screen.print(leases_table(leases))


def _stream_rows(
    stream: StreamView, planned: _DriverRows, metadata: Metadata | None
) -> list[tuple[str, Any]]:
    size = format_bytes(stream.nbytes)
    return [
        ("stream", stream.stream_id),
        ("name", _name(stream, planned) or "none"),
        ("producer", stream.producer_id or Text("none at the moment", style=WARN)),
        ("epoch", stream.epoch),
        ("layout", f"version {stream.layout_version}, {stream.nslots} slots, {size} in all"),
        ("pools", ", ".join(f"{pool.pool_id}: {size_literal(pool.stride_bytes)}" for pool in stream.pools)),
        ("directory", _directory(stream) or stream.header_uri),
        ("announced", f"{format_duration(announce_age_ns(stream) / 1e9)} ago"),
        *attribute_rows(metadata),
    ]


@stream.command(epilog=_WATCH)
@click.option(
    "--period", default=1.0, show_default=True, type=click.FloatRange(0.05, 3600), help="Seconds a report."
)
@click.option("--count", type=click.IntRange(1), help="Stop after this many reports.")
@connect_options
def watch(to: ConnectOptions, period: float, count: int | None) -> None:
    """Watch all streams: rate, bandwidth, shape, dtype, drops, latency. Until Ctrl-C.

    Prints a table on a terminal, else a line for each stream and period. Rates are the producer's, from its
    sequence numbers. Drops are those that every consumer has (of frames that were not published, for
    example). The latency is the highest that a consumer reports.
    """
    with to.context() as ctx:
        if not watch_streams(ctx, period=period, count=count, timeout=to.timeout, json_output=to.json_output):
            raise NoSuchStream(f"{NO_STREAM} within {to.timeout:g} s")


@stream.command(epilog=_HZ)
@click.argument("wanted", metavar="STREAM", type=_STREAM)
@click.option(
    "--window",
    default=10_000,
    show_default=True,
    type=click.IntRange(2, 1_000_000),
    help="Frames in the window.",
)
@click.option(
    "--period", default=1.0, show_default=True, type=click.FloatRange(0.05, 3600), help="Seconds a report."
)
@click.option("--count", type=click.IntRange(1), help="Stop after this many reports.")
@click.option(
    "--clock", type=click.Choice(["arrival", "frame"]), default="arrival", show_default=True,
    help="Use the time of arrival, or the time in the frame.",
)  # fmt: skip
@connect_options
def hz(
    to: ConnectOptions, wanted: int | str, window: int, period: float, count: int | None, clock: str
) -> None:
    """Measure the rate of a stream, the spacing of its frames, and their latency. Until Ctrl-C."""
    with _announced_stream(to, wanted) as (ctx, stream):
        measure(ctx, stream.stream_id, window=window, period=period, count=count, clock=clock, to=to)


@stream.command(epilog=_ECHO)
@click.argument("wanted", metavar="STREAM", type=_STREAM)
@click.option(
    "--count", type=click.IntRange(1), help="Stop after this many frames. [1 with --image, else none]"
)
@click.option("--latest", is_flag=True, help="Read the newest frame only, and skip older ones.")
@click.option(
    "--image", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.png",
    help="Write the frame as a PNG file too; {seq} in the name is replaced by its sequence.",
)  # fmt: skip
@connect_options
def echo(to: ConnectOptions, wanted: int | str, count: int | None, latest: bool, image: Path | None) -> None:
    """Print frames: sequence, shape, dtype, minimum, maximum and mean value, and the first few values.

    An image keeps uint8 and uint16 values and stretches other types from their minimum to their maximum. It
    is gray, or RGB(A) if there are 3 or 4 channels.
    """
    if image is not None and image.suffix.lower() != ".png":
        raise click.BadParameter(f"{image}: the image is a PNG, so use FILE.png", param_hint="'--image'")
    with _announced_stream(to, wanted) as (ctx, stream):
        limit = count or (1 if image else None)
        echo_frames(ctx, stream.stream_id, count=limit, latest=latest, image=image, to=to)


@stream.command(epilog=_TRACE)
@click.argument("wanted", metavar="ID", type=click.IntRange(1, MAX_U64))
@click.option("--count", type=click.IntRange(1), help="Stop after this many frames.")
@click.option(
    "--descriptor-stream-id", "descriptor_streams", multiple=True,
    type=click.IntRange(1, MAX_AERON_STREAM_ID),
    help="Subscribe to this descriptor stream too, if streams have their own.",
)  # fmt: skip
@connect_options
def trace(to: ConnectOptions, wanted: int, count: int | None, descriptor_streams: tuple[int, ...]) -> None:
    """Show which frames each frame was made from. Until Ctrl-C.

    ID is a stream, or a trace (a number of more than 32 bits): then every frame that carries it or descends
    from it is shown. Only messages that are published while this command runs are used; producers need
    traces=True.
    """
    with to.context() as ctx:
        print_lineage(ctx, wanted, descriptor_streams=descriptor_streams, count=count, to=to)


def _announce_monitor(ctx: Context) -> SystemMonitor:
    return SystemMonitor(ctx.connection, streams=_ANNOUNCE_STREAMS, polls_services=False)


@contextmanager
def _announced_stream(to: ConnectOptions, wanted: int | str) -> Iterator[tuple[Context, StreamView]]:
    """A context and the announced stream. Raises NoSuchStream, with the streams that are announced."""
    with to.context() as ctx:
        with _announce_monitor(ctx) as monitor:
            monitor.watch(to.timeout, until=lambda: bool(_find(monitor, wanted)))
            found, streams = _find(monitor, wanted), announced_streams(monitor)
        if not found:
            names = [
                f"{each.stream_id} ({each.name})" if each.name else str(each.stream_id) for each in streams
            ]
            others = ", ".join(names[:10]) + (", …" if len(names) > 10 else "")
            announced = f"announced are {others}" if names else NO_STREAM
            raise NoSuchStream(f"stream {wanted} was not announced within {to.timeout:g} s; {announced}")
        if len(found) > 1:
            ids = ", ".join(str(each.stream_id) for each in found)
            raise NoSuchStream(f"{len(found)} streams are named {wanted!r}: {ids}; use one of these ids")
        yield ctx, found[0]


def _find(monitor: SystemMonitor, wanted: int | str) -> list[StreamView]:
    """The announced streams with that id or name."""
    streams = announced_streams(monitor)
    return [stream for stream in streams if wanted in (stream.stream_id, stream.name)]


def _name(stream: StreamView, planned: _DriverRows) -> str:
    row = planned.get(stream.stream_id)
    return stream.name or ("" if row is None else row["name"])


def _directory(stream: StreamView) -> Path | None:
    try:
        return region_path(stream.header_uri)[0].parent
    except ValueError:
        return None


def _leases(planned: StreamRow | None) -> str:
    if planned is None:
        return ""
    return f"{0 if planned['producer'] is None else 1}+{planned['consumers']}"


def _stream_json(stream: StreamView, planned: _DriverRows) -> Mapping[str, object]:
    directory = _directory(stream)
    return {
        "stream_id": stream.stream_id,
        "name": _name(stream, planned) or None,
        "producer_id": stream.producer_id or None,
        "epoch": str(stream.epoch),
        "layout_version": stream.layout_version,
        "nslots": stream.nslots,
        "pools": [
            {"pool_id": pool.pool_id, "stride_bytes": pool.stride_bytes, "region_uri": pool.region_uri}
            for pool in stream.pools
        ],
        "bytes": stream.nbytes,
        "header_region_uri": stream.header_uri,
        "directory": None if directory is None else str(directory),
        "announce_age_s": announce_age_ns(stream) / 1e9,
        "driver": planned.get(stream.stream_id),
    }


# --- metadata


def receive_attributes(ctx: Context, stream_id: int, timeout: float) -> Metadata | None:
    """The newest attributes of the stream; None if none are received within one and a half periods."""
    with ctx.consumer(stream_id) as consumer:
        period_s = ctx.connection.announce_period_ns / 1e9
        metadata = consumer.wait_for_metadata(min(_ANNOUNCE_PERIODS * period_s, timeout))
    return metadata if isinstance(metadata, Metadata) else None


def attribute_rows(metadata: Metadata | None) -> list[tuple[str, str]]:
    """The version, and the names and values of attributes as text."""
    if metadata is None:
        return [("metadata", "none")]
    count = f"{len(metadata)} attribute{'s' * (len(metadata) != 1)}"
    rows = [("metadata", f"version {metadata.version}, {count}")]
    return [*rows, *((f"  {key}", _attribute_text(metadata[key], metadata.raw(key)[0])) for key in metadata)]


def _metadata_json(metadata: Metadata | None) -> JsonMapping | None:
    if metadata is None:
        return None
    return {
        "version": metadata.version,
        "attributes": {key: _attribute_json(metadata[key], *metadata.raw(key)) for key in metadata},
    }


def _attribute_text(value: Any, media_type: str) -> str:
    if isinstance(value, np.ndarray):
        return f"array {'x'.join(map(str, value.shape))} {value.dtype}"
    if isinstance(value, bytes):
        return f"{len(value)} bytes of {media_type or 'no format'}"
    text = value if isinstance(value, str) else json.dumps(value)
    return safe_text(text[:_MAX_ATTRIBUTE_TEXT]) + ("…" if len(text) > _MAX_ATTRIBUTE_TEXT else "")


def _attribute_json(value: Any, media_type: str, raw: bytes) -> Any:
    """The value; for an array or bytes, its format, length and, if it is short, its content as base64."""
    if not isinstance(value, np.ndarray | bytes):
        return value
    shown: dict[str, JsonValue] = {"format": media_type, "bytes": len(raw)}
    if isinstance(value, np.ndarray):
        shown |= {"shape": value.shape, "dtype": str(value.dtype)}
    if len(raw) <= _MAX_BASE64_BYTES:
        shown["base64"] = base64.b64encode(raw).decode()
    return shown
