"""The S3 server of the tests: what the tests of storage rely on."""

from __future__ import annotations

import pyarrow.fs

from tests.s3_server import S3Server


def test_s3_server_puts_an_object_only_if_it_is_absent(s3_server: S3Server) -> None:
    assert s3_server.put("decision", b"first", if_none_match="*") == 200
    assert s3_server.put("decision", b"second", if_none_match="*") == 412
    assert s3_server.file("decision").read_bytes() == b"first"
    assert s3_server.put("decision", b"third") == 200
    assert s3_server.objects() == ["decision"]


def test_s3_server_forgets_an_object_that_it_was_killed_within(s3_server: S3Server) -> None:
    assert s3_server.put("log/1", b"first", if_none_match="*") == 200
    s3_server.file("log/1").unlink()
    assert s3_server.put("log/1", b"second", if_none_match="*") == 412
    s3_server.stop()
    s3_server.start()
    assert s3_server.put("log/1", b"second", if_none_match="*") == 200
    assert s3_server.put("log/1", b"third", if_none_match="*") == 412
    assert s3_server.file("log/1").read_bytes() == b"second"


def test_s3_server_refuses_wrong_credentials(s3_server: S3Server) -> None:
    s3_server.secret_key = "wrong"
    assert s3_server.put("a", b"") == 403


def test_s3_server_keeps_its_objects_over_a_restart(s3_server: S3Server) -> None:
    filesystem, path = pyarrow.fs.FileSystem.from_uri(s3_server.uri("a/b"))
    with filesystem.open_output_stream(path) as out:
        out.write(b"0123456789")
    s3_server.stop()
    s3_server.start()
    with filesystem.open_input_file(path) as file:
        assert file.read_at(4, 3) == b"3456"
    assert s3_server.file("a/b").read_bytes() == b"0123456789"
