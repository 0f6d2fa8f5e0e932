"""`tensorpool sbe`: messages as JSON, and JSON as messages.

For comparing the bytes of two implementations.
"""

from __future__ import annotations

import json
import sys
from typing import IO, NoReturn

import click

from ..errors import CodecError
from ..sbe import Message, decode_prefix, json_form, layout, read_header
from .params import CommandGroup

_DECODE_EXAMPLES = """
\b
Examples:
  tensorpool sbe decode message.bin
  echo 18000100850301000100...ffff | tensorpool sbe decode --hex -
  tensorpool sbe decode --message SlotHeader slot.bin
"""

_ENCODE_EXAMPLES = """
\b
Examples:
  tensorpool sbe encode message.json > message.bin
  tensorpool sbe decode message.bin | tensorpool sbe encode --hex -
  echo '{"message": "QosProducer", "fields": {"stream_id": 1,
         "producer_id": 7, "epoch": "1", "current_seq": "42"}}' |
      tensorpool sbe encode --hex -
"""


_EPILOG = """
\b
Examples:
  tensorpool sbe decode message.bin
  tensorpool sbe decode --message SlotHeader slot.bin
  tensorpool sbe encode message.json > message.bin
"""


@click.group("sbe", cls=CommandGroup, epilog=_EPILOG)
def sbe() -> None:
    """Decode messages of the protocols to JSON, and encode them from JSON."""


@sbe.command(epilog=_DECODE_EXAMPLES)
@click.argument("file", type=click.File("rb"))
@click.option("--schema", metavar="N", help="Accept only this schema: an id (901) or a name (driver-901-r2).")
@click.option(
    "--message", metavar="NAME", help="Accept only this message. Needed for messages without a header."
)
@click.option("--hex", "as_hex", is_flag=True, help="The input is hexadecimal text.")
@click.option("--compact", is_flag=True, help="Print one line.")
def decode(file: IO[bytes], schema: str | None, message: str | None, as_hex: bool, compact: bool) -> None:
    """Print the message in FILE (- for standard input) as JSON.

    Messages in shared memory (ShmRegionSuperblock, SlotHeader) have no message header: name them with
    --message.
    """
    content = file.read()
    if as_hex:
        content = _from_hex(content)
    if schema is not None and schema not in _schema_names():
        raise click.BadParameter(
            f"{schema} is not one of {', '.join(_schema_names())}", param_hint="--schema"
        )
    try:
        decoded, end = _decode(content, schema, message)
    except CodecError as error:
        _fail(str(error))
    if end < len(content):
        click.echo(f"note: {len(content) - end} bytes follow the message", err=True)
    click.echo(json.dumps(json_form.to_json(decoded), indent=None if compact else 2))


@sbe.command(epilog=_ENCODE_EXAMPLES)
@click.argument("file", type=click.File("rb"))
@click.option("--hex", "as_hex", is_flag=True, help="Print hexadecimal text instead of bytes.")
def encode(file: IO[bytes], as_hex: bool) -> None:
    """Encode the message that the JSON in FILE (- for standard input) describes.

    The JSON has the form of `tensorpool sbe decode`. Fields with a default may be omitted.
    """
    try:
        encoded = json_form.from_json(json.loads(file.read())).encode()
    except CodecError as error:
        _fail(str(error))
    except (ValueError, RecursionError) as error:
        _fail(f"not JSON: {error}")
    if as_hex:
        click.echo(encoded.hex())
    elif sys.stdout.isatty():
        _fail("a terminal cannot show bytes; redirect the output, or use --hex")
    else:
        click.echo(encoded, nl=False)


def _decode(content: bytes, schema: str | None, message: str | None) -> tuple[Message, int]:
    if message is not None:
        kind = json_form.class_named(message)
        _check_schema(schema, kind.layout())
        return kind.decode_prefix(content)
    if schema is not None and schema.isdigit() and read_header(content).schema_id != int(schema):
        raise CodecError(f"the message is of schema {read_header(content).schema_id}, not {schema}")
    decoded, end = decode_prefix(content)
    _check_schema(schema, decoded.layout())
    return decoded, end


def _check_schema(expected: str | None, decoded: layout.MessageLayout) -> None:
    if expected is not None and expected not in (decoded.schema, str(decoded.schema_id)):
        raise CodecError(f"{decoded.name} is of schema {decoded.schema}, not {expected}")


def _schema_names() -> list[str]:
    return [*dict.fromkeys(str(schema.schema_id) for schema in layout.schemas()), *layout.SCHEMA_NAMES]


def _from_hex(content: bytes) -> bytes:
    try:
        return bytes.fromhex(content.decode("ascii"))
    except ValueError as error:
        _fail(f"not hexadecimal: {error}")


def _fail(reason: str) -> NoReturn:
    click.echo(f"error: {reason}", err=True)
    raise SystemExit(1)
