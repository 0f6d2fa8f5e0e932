"""A real S3 server as a process of the test's own: versitygw, which `tools/s3-server` provides.

Its buckets are directories, and an object is a file in one of them: a test can look at what was stored, or
damage it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.ports import free_port

PATIENCE_S = 60
REGION = "us-east-1"


def program() -> str | None:
    """The server's path; None if the machine has none and `tools/s3-server` has not built one."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    built = sorted(Path(cache, "tensorpool").glob("versitygw-*/versitygw"))
    return shutil.which("versitygw") or (str(built[-1]) if built else None)


@dataclass
class S3Server:
    """A server on a port of its own, with one bucket. It can be stopped and started again."""

    directory: Path
    bucket: str = "lake"
    port: int = field(default_factory=free_port)
    access_key: str = field(default_factory=lambda: f"TEST{secrets.token_hex(8).upper()}")
    secret_key: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def endpoint(self) -> str:
        """Where clients find it."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables from which clients take endpoint and credentials."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            # Clients of Rust's object_store refuse plain HTTP otherwise.
            "AWS_ALLOW_HTTP": "true",
            # No client may ask the machine's metadata service for credentials.
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def uri(self, path: str = "") -> str:
        """The URI of an object or a prefix of the bucket."""
        return f"s3://{self.bucket}/{path}".rstrip("/")

    def put(self, key: str, content: bytes, query: str = "", **headers: str) -> int:
        """The status of a signed PUT request (AWS signature version 4), with extra headers.

        An empty key is the bucket itself.
        """
        time_text = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        digest = hashlib.sha256(content).hexdigest()
        signed = {
            "host": f"127.0.0.1:{self.port}", "x-amz-content-sha256": digest, "x-amz-date": time_text,
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }  # fmt: skip
        names = ";".join(sorted(signed))
        lines = "".join(f"{name}:{signed[name]}\n" for name in sorted(signed))
        path = f"/{self.bucket}/{key}".rstrip("/")
        request_text = f"PUT\n{path}\n{query}\n{lines}\n{names}\n{digest}"
        scope = f"{time_text[:8]}/{REGION}/s3/aws4_request"
        text = f"AWS4-HMAC-SHA256\n{time_text}\n{scope}\n{hashlib.sha256(request_text.encode()).hexdigest()}"
        secret = b"AWS4" + self.secret_key.encode()
        for part in scope.split("/"):
            secret = hmac.digest(secret, part.encode(), "sha256")
        signature = hmac.digest(secret, text.encode(), "sha256").hex()
        credential = f"Credential={self.access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
        request = urllib.request.Request(
            f"{self.endpoint}{path}?{query}".rstrip("?"),
            content,
            {**signed, "Authorization": f"AWS4-HMAC-SHA256 {credential}"},
            method="PUT",
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code

    def let_anyone_in(self) -> None:
        """Lets requests without a signature read and write the bucket."""
        arn = f"arn:aws:s3:::{self.bucket}"
        statement = {"Effect": "Allow", "Principal": "*", "Action": "s3:*", "Resource": [arn, f"{arn}/*"]}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        assert self.put("", policy.encode(), "policy=") == 204

    def file(self, path: str) -> Path:
        """The file that holds an object of the bucket."""
        return self.directory / "buckets" / self.bucket / path

    def objects(self) -> list[str]:
        """The keys of all objects of the bucket."""
        root = self.file("")
        return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())

    def damage(self, path: str, part: float = 0.5, *, keep_checksum: bool = False) -> int:
        """Flips a bit of an object, at a part of its length. Returns its size.

        Without `keep_checksum` the server no longer knows what the bytes were, as a store without checksums.
        """
        file = self.file(path)
        content = bytearray(file.read_bytes())
        content[int(len(content) * part)] ^= 1
        file.write_bytes(content)
        if not keep_checksum:
            shutil.rmtree(self.directory / "attributes" / self.bucket, ignore_errors=True)
        return len(content)

    @property
    def log(self) -> Path:
        """What the server printed, one line a request."""
        return self.directory / "versitygw.log"

    def start(self) -> None:
        """Starts it, on the same port and with the same objects as before."""
        assert self._process is None, "it runs already"
        for directory in (self.file(""), self.directory / "attributes"):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._forget_unfinished()
        command = [
            str(program()), "--port", f"127.0.0.1:{self.port}", "--region", REGION,
            # Attributes of objects are files too: not every filesystem has extended attributes.
            "posix", "--sidecar", str(self.directory / "attributes"), str(self.directory / "buckets"),
        ]  # fmt: skip
        environment = {
            "ROOT_ACCESS_KEY": self.access_key,
            "ROOT_SECRET_KEY": self.secret_key,
            "GOMAXPROCS": "2",
            "HOME": str(self.directory),
        }
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd=self.directory
            )
        deadline = time.monotonic() + PATIENCE_S
        while not self._answers():
            assert self._process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)

    def _forget_unfinished(self) -> None:
        """Removes attributes of objects that do not exist.

        The server writes them before the object. After a kill in between it refuses to create the object, as
        if it existed, and does not list it. No store for tables may do so.
        """
        attributes = self.directory / "attributes"
        for meta in list(attributes.rglob("meta")):
            if not (self.directory / "buckets" / meta.parent.relative_to(attributes)).exists():
                shutil.rmtree(meta)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(self.endpoint, timeout=PATIENCE_S):
                return True
        except urllib.error.HTTPError:
            # It refuses a request without a signature.
            return True
        except OSError:
            return False

    def stop(self) -> None:
        """Kills it, as a machine that loses power: connections break."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Freezes it: connections stay open, and get no answer."""
        assert self._process is not None, "it does not run"
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Ends `pause`."""
        assert self._process is not None, "it does not run"
        self._process.send_signal(signal.SIGCONT)


@contextmanager
def serve_s3(directory: Path) -> Iterator[S3Server]:
    """A running server with its files in a directory. Skips the test on a machine without the program."""
    if program() is None:
        pytest.skip("no S3 server: tools/s3-server builds versitygw, and make test calls it")
    server = S3Server(directory)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def s3_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """A server of the test's own; this process and its children find it by their environment."""
    directory = tmp_path / "s3"
    directory.mkdir(mode=0o700)
    with serve_s3(directory) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server
