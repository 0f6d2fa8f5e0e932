"""The S3 server of the tests: what the tests of storage rely on."""

from __future__ import annotations

import hashlib
import hmac
import urllib.error
import urllib.request
from datetime import UTC, datetime

import pyarrow.fs

from tests.s3_server import REGION, S3Server


def put(server: S3Server, key: str, content: bytes, **headers: str) -> int:
    """The status of a signed PUT request (AWS signature version 4), with extra headers."""
    time = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    digest = hashlib.sha256(content).hexdigest()
    signed = {
        "host": f"127.0.0.1:{server.port}", "x-amz-content-sha256": digest, "x-amz-date": time,
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }  # fmt: skip
    names = ";".join(sorted(signed))
    lines = "".join(f"{name}:{signed[name]}\n" for name in sorted(signed))
    path = f"/{server.bucket}/{key}"
    request_text = f"PUT\n{path}\n\n{lines}\n{names}\n{digest}"
    scope = f"{time[:8]}/{REGION}/s3/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{time}\n{scope}\n{hashlib.sha256(request_text.encode()).hexdigest()}"
    secret = b"AWS4" + server.secret_key.encode()
    for part in scope.split("/"):
        secret = hmac.digest(secret, part.encode(), "sha256")
    signature = hmac.digest(secret, text.encode(), "sha256").hex()
    credential = f"Credential={server.access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
    request = urllib.request.Request(
        server.endpoint + path,
        content,
        {**signed, "Authorization": f"AWS4-HMAC-SHA256 {credential}"},
        method="PUT",
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def test_s3_server_puts_an_object_only_if_it_is_absent(s3_server: S3Server) -> None:
    assert put(s3_server, "decision", b"first", if_none_match="*") == 200
    assert put(s3_server, "decision", b"second", if_none_match="*") == 412
    assert s3_server.file("decision").read_bytes() == b"first"
    assert put(s3_server, "decision", b"third") == 200
    assert s3_server.objects() == ["decision"]


def test_s3_server_refuses_wrong_credentials(s3_server: S3Server) -> None:
    s3_server.secret_key = "wrong"
    assert put(s3_server, "a", b"") == 403


def test_s3_server_keeps_its_objects_over_a_restart(s3_server: S3Server) -> None:
    filesystem, path = pyarrow.fs.FileSystem.from_uri(s3_server.uri("a/b"))
    with filesystem.open_output_stream(path) as out:
        out.write(b"0123456789")
    s3_server.stop()
    s3_server.start()
    with filesystem.open_input_file(path) as file:
        assert file.read_at(4, 3) == b"3456"
    assert s3_server.file("a/b").read_bytes() == b"0123456789"
