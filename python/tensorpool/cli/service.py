"""`tensorpool service`: list, read and control running services."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import click
import numpy as np

from ..errors import CodecError, RequestRejected
from ..sbe import STATUS_KEY, decode, json_form
from ..service import Bits, Event, FrameRef, Value
from ..text import safe_text
from .options import ConnectOptions, connect_options, token_option
from .output import echo
from .params import CommandGroup

# Longest wait for replies of all services.
_PING_S = 1.0

_EPILOG = """
\b
Examples:
  tensorpool service ls
  tensorpool service get recorder rate
  tensorpool service set recorder:2 rate 25
  tensorpool service call recorder start path=/data/run7
  tensorpool service watch recorder rate
  tensorpool service log > accepted.jsonl
"""


def _examples(*lines: str) -> str:
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


@click.group(cls=CommandGroup, epilog=_EPILOG)
def service() -> None:
    """Read, set, call and watch running services.

    A service is named NAME, or NAME:INSTANCE where several run.
    """


@service.command(epilog=_examples("tensorpool service ls", "tensorpool service ls --json | jq '.[].tag'"))
@connect_options
def ls(to: ConnectOptions) -> None:
    """List the services that reply."""
    with to.context() as ctx:
        services = ctx.services(min(to.timeout, _PING_S))
    if to.json_output:
        click.echo(json.dumps([entry.to_json() for entry in services], indent=2))
    elif services:
        for entry in services:
            echo(f"{entry.tag:<40} pid {entry.pid}")
    else:
        click.echo("no service replies on this media driver", err=True)


@service.command(
    epilog=_examples("tensorpool service ping driver", "tensorpool service ping recorder:2 && echo it runs")
)
@click.argument("target")
@connect_options
def ping(to: ConnectOptions, target: str) -> None:
    """Check that a service replies: exit status 0 if it does."""
    with to.client(target) as client:
        identity = client.ping()
    click.echo(
        json.dumps(identity.to_json()) if to.json_output else f"{client.tag} is alive, pid {identity.pid}"
    )


@service.command(
    epilog=_examples("tensorpool service get recorder rate", "tensorpool service get recorder --json")
)
@click.argument("target")
@click.argument("name", required=False)
@connect_options
def get(to: ConnectOptions, target: str, name: str | None) -> None:
    """Print the value of a property, or of all properties."""
    with to.client(target) as client:
        names = [name] if name else list(client.call("describe")["properties"])
        values = {each: client.get(each) for each in names}
    if to.json_output:
        click.echo(json.dumps({each: _plain(value) for each, value in values.items()}))
    elif name:
        echo(_text(values[name]))
    else:
        for each, value in values.items():
            echo(f"{safe_text(each)} = {_text(value)}")


@service.command(
    epilog=_examples("tensorpool service set recorder rate 25", "tensorpool service set camera:2 offset -3"),
    name="set",
    context_settings={"ignore_unknown_options": True},
)
@click.argument("target")
@click.argument("name")
@click.argument("value")
@connect_options
def set_(to: ConnectOptions, target: str, name: str, value: str) -> None:
    """Set a property and print the accepted value."""
    with to.client(target) as client:
        kind = client.call("describe")["properties"].get(name, {}).get("type", "str")
        accepted = client.set(name, _parse(value, kind))
    click.echo(json.dumps({name: _plain(accepted)}) if to.json_output else safe_text(_text(accepted)))


@service.command(
    epilog=_examples(
        "tensorpool service call recorder start path=/data/run7",
        "TENSORPOOL_TOKEN=… tensorpool service call driver stop",
    )
)
@click.argument("target")
@click.argument("name")
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE]...")
@token_option
@connect_options
def call(to: ConnectOptions, target: str, name: str, arguments: tuple[str, ...], token: str | None) -> None:
    """Call a command and print its result as JSON. A VALUE is JSON, or else text."""
    with to.client(target, token) as client:
        result = client.call(name, dict(_argument(text) for text in arguments))
    if to.json_output or result is not None:
        click.echo(json.dumps(result))


@service.command(
    epilog=_examples("tensorpool service watch recorder", "tensorpool service watch recorder rate --json")
)
@click.argument("target")
@click.argument("name", required=False)
@connect_options
def watch(to: ConnectOptions, target: str, name: str | None) -> None:
    """Print the events of a service from now on, until Ctrl-C."""
    with to.client(target) as client:
        print_events(client.watch(name), to.json_output)


@service.command(
    epilog=_examples("tensorpool service log > accepted.jsonl", "tensorpool service log --count 10")
)
@click.option("--count", type=click.IntRange(1), help="Stop after this number of events.")
@connect_options
def log(to: ConnectOptions, count: int | None) -> None:
    """Print the status stream as JSON lines, until Ctrl-C: the record of accepted commands.

    The kind of an event is `change` for an accepted command or value, `read` for a request that changed
    nothing, `result`, `failed`, `rejected`, or `lost` where events are missing.
    """
    with to.context() as ctx:
        print_events(ctx.status_events(), json_output=True, count=count)


def print_events(events: Iterator[Event], json_output: bool, count: int | None = None) -> None:
    """Print one line for each event."""
    try:
        for number, event in enumerate(events, start=1):
            text = safe_text(f"{event.tag} {event.key} = {event_text(event)}")
            click.echo(event_line(event) if json_output else text)
            sys.stdout.flush()
            if number == count:
                return
    except KeyboardInterrupt:
        return


def event_line(event: Event) -> str:
    """An event as one line of JSON."""
    return json.dumps(
        {
            "timestamp_ns": str(event.timestamp_ns),
            "tag": event.tag,
            "key": event.key,
            "kind": event.kind,
            "value": _event_value(event),
            "correlation_id": str(event.correlation_id),
            "trace_id": None if event.trace_id is None else str(event.trace_id),
        }
    )


def _event_value(event: Event) -> Any:
    """The value as JSON can hold it: a status report by its fields."""
    if event.key == STATUS_KEY and isinstance(event.value, bytes):
        with suppress(CodecError):
            return json_form.to_json(decode(event.value))["fields"]
    return _plain(event.value)


def event_text(event: Event) -> str:
    """The value of an event as text."""
    return event.value if isinstance(event.value, str) else json.dumps(_event_value(event))


def _argument(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise click.BadParameter(f"{text!r} is not KEY=VALUE")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def _parse(text: str, kind: str) -> Value:
    """The text in the property's type."""
    try:
        match kind:
            case "int":
                return int(text, 0)
            case "float":
                return float(text)
            case "bool":
                return {"true": True, "false": False}[text.lower()]
            case "bytes":
                return bytes.fromhex(text)
    except (ValueError, KeyError):
        raise RequestRejected(f"{text!r} is not of type {kind}") from None
    return text


def _plain(value: Value) -> Any:
    """A value in JSON types."""
    match value:
        case np.ndarray():
            return [_plain(element) for element in value.tolist()]
        case float():
            # JSON has no NaN and no infinity.
            return value if math.isfinite(value) else str(value)
        case bytes():
            return {"hex": value.hex()}
        case Bits():
            return {"bits": value.packed.hex()}
        case FrameRef():
            return {"stream_id": value.stream_id, "epoch": str(value.epoch), "seq": str(value.seq)}
    return value


def _text(value: Value) -> str:
    return value if isinstance(value, str) else json.dumps(_plain(value))
