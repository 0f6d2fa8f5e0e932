"""The commands `tensorpool sbe decode` and `encode`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tensorpool import sbe as messages
from tensorpool.cli.sbe import sbe

ROOT = Path(__file__).parents[3]
REQUEST = messages.ShmAttachRequest(
    correlation_id=(7 << 32) | 1, stream_id=10000, client_id=7, role=messages.Role.PRODUCER
)
SLOT = messages.SlotHeader(
    seq_commit=3, values_len_bytes=4, payload_slot=1, pool_id=1, timestamp_ns=9, meta_version=0
)


def run(*arguments: str, given: bytes = b""):
    return CliRunner().invoke(sbe, arguments, input=given)


def test_decode_prints_json_with_long_ids_as_strings():
    done = run("decode", "-", given=REQUEST.encode())
    assert (done.exit_code, done.stderr) == (0, "")
    form = json.loads(done.stdout)
    assert (form["message"], form["schema"]) == ("ShmAttachRequest", "driver-901")
    assert form["fields"]["correlation_id"] == str((7 << 32) | 1)
    assert form["fields"]["role"] == "PRODUCER"
    assert form["fields"]["publish_mode"] is None


def test_encode_returns_the_decoded_bytes():
    form = run("decode", "-", given=REQUEST.encode()).stdout_bytes
    done = run("encode", "-", given=form)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout_bytes == REQUEST.encode()
    assert run("encode", "--hex", "-", given=form).stdout == REQUEST.encode().hex() + "\n"


def test_hexadecimal_text_may_have_spaces_and_lines():
    text = "\n".join(REQUEST.encode().hex(" ").split(" 01 ")).encode() + b"\n"
    spaced = REQUEST.encode().hex(" ", 4).encode() + b"\n\n"
    for given in (spaced, REQUEST.encode().hex().upper().encode()):
        assert json.loads(run("decode", "--hex", "-", given=given).stdout)["message"] == "ShmAttachRequest"
    assert run("decode", "--hex", "-", given=text[:5] + b"zz").exit_code == 1


def test_file_is_read_and_compact_json_is_one_line(tmp_path):
    path = tmp_path / "message.bin"
    path.write_bytes(REQUEST.encode())
    done = run("decode", "--compact", str(path))
    assert done.stdout.count("\n") == 1
    assert json.loads(done.stdout)["fields"]["stream_id"] == 10000


def test_messages_without_a_header_are_named():
    done = run("decode", "--message", "SlotHeader", "-", given=SLOT.encode())
    assert json.loads(done.stdout)["fields"]["seq_commit"] == "3"
    assert run("encode", "-", given=done.stdout_bytes).stdout_bytes == SLOT.encode()
    assert run("decode", "--message", "Slot", "-", given=SLOT.encode()).exit_code == 1


@pytest.mark.parametrize("schema", ["901", "driver-901"])
def test_decode_accepts_only_the_given_schema(schema):
    assert run("decode", "--schema", schema, "-", given=REQUEST.encode()).exit_code == 0


@pytest.mark.parametrize("schema", ["900", "driver-901-r2"])
def test_message_of_another_schema_fails(schema):
    done = run("decode", "--schema", schema, "-", given=REQUEST.encode())
    assert (done.exit_code, done.stdout) == (1, "")
    assert schema in done.stderr
    named = run("decode", "--schema", schema, "--message", "ShmAttachRequest", "-", given=REQUEST.encode())
    assert named.exit_code == 1


def test_bytes_after_the_message_are_noted_on_stderr():
    done = run("decode", "-", given=REQUEST.encode() + b"abc")
    assert done.exit_code == 0
    assert done.stderr == "note: 3 bytes follow the message\n"


@pytest.mark.parametrize(
    ("arguments", "given", "expected_text"),
    [
        (("decode", "-"), REQUEST.encode()[:20], "ShmAttachRequest.client_id at byte 20"),
        (("decode", "-"), b"", "MessageHeader"),
        (("encode", "-"), b"{", "not JSON"),
        (("encode", "-"), b"\xff\xfe", "not JSON"),
        (("encode", "-"), b"[" * 100_000, "not JSON"),
        (("encode", "-"), b'{"message": "X", "fields": {}}', "no message is called 'X'"),
    ],
)
def test_failure_has_a_reason_on_stderr_and_status_1(arguments, given, expected_text):
    done = run(*arguments, given=given)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ")
    assert expected_text in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("decode",),
        ("decode", "/no/such/file"),
        ("decode", "--schema", "5", "-"),
        ("encode", "--wrong", "-"),
        ("x",),
    ],
)
def test_usage_error_exits_with_2(arguments):
    done = run(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "Usage:" in done.stderr


@pytest.mark.parametrize("command", ["decode", "encode"])
def test_help_has_examples(command):
    done = run(command, "--help")
    assert done.exit_code == 0
    assert "Examples:" in done.stdout
    assert f"tensorpool sbe {command}" in done.stdout


def test_pipeline_of_real_processes_gives_the_same_bytes():
    code = "from tensorpool.cli.sbe import sbe; sbe(prog_name='sbe')"
    command = [sys.executable, "-c", code]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    decoded = subprocess.run(
        [*command, "decode", "-"], input=REQUEST.encode(), env=environment, capture_output=True, check=True
    )
    encoded = subprocess.run(
        [*command, "encode", "-"], input=decoded.stdout, env=environment, capture_output=True, check=True
    )
    assert encoded.stdout == REQUEST.encode()
    failed = subprocess.run(
        [*command, "decode", "-"], input=b"short", env=environment, capture_output=True, check=False
    )
    assert (failed.returncode, failed.stdout) == (1, b"")
    assert failed.stderr.startswith(b"error: ")
