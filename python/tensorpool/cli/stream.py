"""`tensorpool stream`: which streams there are, who uses them, how fast they run, what is in them.

What a source says of itself, for `tensorpool stream info`.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
from rich.text import Text

from ..client import Metadata
from ..context import Context
from ..driver.client import StreamRow
from ..errors import TensorPoolError
from ..monitor import AnnounceEar, StreamHeard
from .driver import leases_table
from .options import ConnectOptions, connect_options
from .output import DIM, WARN, columns, console, format_bytes, format_duration, key_values, size_literal
from .params import CommandGroup, StreamId
from .stream_frames import echo_frames, measure, print_lineage
from .stream_watch import watch_streams

# Every stream is announced once a period; half of one is for those that are late.
_LISTEN_PERIODS = 1.5
_WIDE = 100
_ID = StreamId()

NOTHING = "no stream is announced on this media driver"

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
  tensorpool stream hz 20000 --clock frame --window 500
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
    """Nobody announces the stream."""


@click.group(cls=CommandGroup, epilog=_EPILOG)
def stream() -> None:
    """Look at the streams of a live system.

    Looking takes no lease and holds nobody up. A stream is named by its number.
    """


@stream.command(epilog=_LS)
@connect_options
def ls(to: ConnectOptions) -> None:
    """Every stream that is announced.

    Listens for one and a half announce periods. With an SHM driver the numbers of leases are shown too:
    producers + consumers.
    """
    from ..driver.client import driver_streams

    with to.context() as ctx, AnnounceEar(ctx) as ear:
        found = ear.listen(min(_LISTEN_PERIODS * ear.period_ns / 1e9, to.timeout))
        known = driver_streams(ctx, timeout=to.timeout)
    now = time.monotonic_ns()
    if to.as_json:
        click.echo(json.dumps([_with_driver(one, known, now) for one in found], indent=2))
        return
    if not found:
        click.echo(NOTHING, err=True)
        return
    screen = console()
    heads = ["stream", "name", "producer", "epoch", "slots", "pools", "age", *(["leases"] if known else [])]
    table = columns(*heads, right=("stream", "slots", "age", "leases"))
    for one in found:
        row = [
            str(one.stream_id),
            _name(one, known),
            str(one.producer_id) if one.has_producer else Text("none", style=DIM),
            str(one.epoch) if screen.width >= _WIDE else f"…{one.epoch % 10**6:06}",
            str(one.nslots),
            " ".join(size_literal(pool.stride_bytes) for pool in one.pools),
            format_duration(one.age_ns(now) / 1e9),
        ]
        table.add_row(*row, *([_leases(known.get(one.stream_id))] if known else []))
    screen.print(table)


@stream.command(epilog=_INFO)
@click.argument("stream_id", metavar="ID", type=_ID)
@connect_options
def info(to: ConnectOptions, stream_id: int) -> None:
    """One stream: layout, producer, epoch, directory, attributes, and who holds leases for how long."""
    from ..driver.client import driver_leases, driver_streams

    pass

    with _stream(to, stream_id) as (ctx, one):
        known = driver_streams(ctx, timeout=to.timeout)
        leases = driver_leases(ctx, stream_id, timeout=to.timeout)
        attributes = receive_attributes(ctx, stream_id, to.timeout)
    now = time.monotonic_ns()
    if to.as_json:
        told = {**_with_driver(one, known, now), "metadata": as_json(attributes), "leases": leases}
        click.echo(json.dumps(told, indent=2))
        return
    screen = console()
    screen.print(
        key_values(
            [
                ("stream", one.stream_id),
                ("name", _name(one, known) or "none"),
                ("producer", one.producer_id if one.has_producer else Text("none at the moment", style=WARN)),
                ("epoch", one.epoch),
                (
                    "layout",
                    f"version {one.layout_version}, {one.nslots} slots, "
                    f"{format_bytes(one.total_bytes)} in all",
                ),
                (
                    "pools",
                    ", ".join(f"{pool.pool_id}: {size_literal(pool.stride_bytes)}" for pool in one.pools),
                ),
                ("directory", one.directory or one.header_uri),
                ("announced", f"{format_duration(one.age_ns(now) / 1e9)} ago"),
                *attribute_rows(attributes),
            ]
        )
    )
    screen.print()
    if leases is None:
        screen.print(
            Text(
                "no SHM driver answers: this stream belongs to its producer, and nobody needs a lease",
                style=DIM,
            )
        )
    elif not leases:
        screen.print(Text("nobody holds a lease", style=DIM))
    else:
        screen.print(leases_table(leases))


@stream.command(epilog=_WATCH)
@click.option(
    "--period", default=1.0, show_default=True, type=click.FloatRange(0.05, 3600), help="Seconds a report."
)
@click.option("--count", type=click.IntRange(1), help="Stop after so many reports.")
@connect_options
def watch(to: ConnectOptions, period: float, count: int | None) -> None:
    """All streams, live: rate, bandwidth, shape, dtype, drops, latency. Until Ctrl-C.

    A table on a terminal, else a line a stream and period. Rates are the producer's, from its sequence
    numbers; drops are what every consumer misses (frames that were not published, say); the latency is
    that of the slowest consumer that tells one.
    """
    with to.context() as ctx:
        if not watch_streams(ctx, period=period, count=count, timeout=to.timeout, as_json=to.as_json):
            raise NoSuchStream(f"{NOTHING} within {to.timeout:g} s")


@stream.command(epilog=_HZ)
@click.argument("stream_id", metavar="ID", type=_ID)
@click.option(
    "--window",
    default=10_000,
    show_default=True,
    type=click.IntRange(2, 1_000_000),
    help="Frames to look back.",
)
@click.option(
    "--period", default=1.0, show_default=True, type=click.FloatRange(0.05, 3600), help="Seconds a report."
)
@click.option("--count", type=click.IntRange(1), help="Stop after so many reports.")
@click.option(
    "--clock", type=click.Choice(["arrival", "frame"]), default="arrival", show_default=True,
    help="When a frame arrives here, or the time that it carries.",
)  # fmt: skip
@connect_options
def hz(to: ConnectOptions, stream_id: int, window: int, period: float, count: int | None, clock: str) -> None:
    """How many frames a second, how evenly they come, how long they take to get here. Until Ctrl-C."""
    with _stream(to, stream_id) as (ctx, _):
        measure(ctx, stream_id, window=window, period=period, count=count, clock=clock, to=to)


@stream.command(epilog=_ECHO)
@click.argument("stream_id", metavar="ID", type=_ID)
@click.option(
    "--count", type=click.IntRange(1), help="Stop after so many frames. [1 with --image, else none]"
)
@click.option("--latest", is_flag=True, help="Always the newest frame: skip those in between.")
@click.option(
    "--image", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.png",
    help="Write the frame as a PNG too; {seq} in the name is the frame's sequence.",
)  # fmt: skip
@connect_options
def echo(to: ConnectOptions, stream_id: int, count: int | None, latest: bool, image: Path | None) -> None:
    """What is in the frames: sequence, shape, dtype, least, greatest and mean value, the first few values.

    A picture keeps uint8 and uint16 as they are and stretches other types from their least to their
    greatest value; gray, or RGB(A) where there are 3 or 4 channels.
    """
    if image is not None and image.suffix.lower() != ".png":
        raise click.BadParameter(f"{image}: a PNG is written, so name it FILE.png", param_hint="'--image'")
    with _stream(to, stream_id) as (ctx, _):
        limit = count or (1 if image else None)
        echo_frames(ctx, stream_id, count=limit, latest=latest, image=image, to=to)


@stream.command(epilog=_TRACE)
@click.argument("wanted", metavar="ID", type=click.IntRange(1, 0xFFFF_FFFF_FFFF_FFFF))
@click.option("--count", type=click.IntRange(1), help="Stop after so many frames.")
@click.option(
    "--descriptor-stream-id", "descriptor_streams", multiple=True, type=click.IntRange(1, 0x7FFF_FFFF),
    help="Listen here too: streams may have descriptor streams of their own.",
)  # fmt: skip
@connect_options
def trace(to: ConnectOptions, wanted: int, count: int | None, descriptor_streams: tuple[int, ...]) -> None:
    """What frames were made from, as they come. Until Ctrl-C.

    ID is a stream, or a trace (a number beyond 32 bits): then every frame that carries it or descends from
    it is shown. Only what is said while this command listens is known; producers need traces=True.
    """
    with to.context() as ctx:
        print_lineage(ctx, wanted, descriptor_streams=descriptor_streams, count=count, to=to)


@contextmanager
def _stream(to: ConnectOptions, stream_id: int) -> Iterator[tuple[Any, StreamHeard]]:
    """The connection and the announce of the stream. Raises NoSuchStream, naming those that are there."""
    with to.context() as ctx:
        with AnnounceEar(ctx) as ear:
            found = {one.stream_id: one for one in ear.listen(to.timeout, until=[stream_id])}
        if stream_id not in found:
            others = ", ".join(map(str, list(found)[:10])) + (", …" if len(found) > 10 else "")
            there = f"announced are {others}" if found else NOTHING
            raise NoSuchStream(f"nobody announced stream {stream_id} within {to.timeout:g} s; {there}")
        yield ctx, found[stream_id]


def _name(one: StreamHeard, known: dict[int, StreamRow]) -> str:
    return one.name or (known[one.stream_id]["name"] if one.stream_id in known else "")


def _leases(known: StreamRow | None) -> str:
    if known is None:
        return ""
    return f"{0 if known['producer'] is None else 1}+{known['consumers']}"


def _with_driver(one: StreamHeard, known: dict[int, StreamRow], now_ns: int) -> dict[str, Any]:
    told = known.get(one.stream_id)
    return {**one.as_json(now_ns), "name": _name(one, known) or None, "driver": told}


# It is said once a period; who says hello is told at once.
_PERIODS: Final = 1.5
_LONGEST = 200
_JSON_BYTES = 4096


def receive_attributes(ctx: Context, stream_id: int, timeout: float) -> Metadata | None:
    """The newest attributes of the stream; None where nobody tells of any within a period and a half."""
    with ctx.consumer(stream_id) as consumer:
        found = consumer.wait_for_metadata(min(_PERIODS * ctx.connection.announce_period_ns / 1e9, timeout))
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
