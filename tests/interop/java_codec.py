"""Build and client of the Java codec server, which exchanges JSON lines.

The codec server is a small program around the codecs that sbe-tool generates from our schema files. Its
sources are hashed; the result is kept under `build/interop/<hash>/` for the next run.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tensorpool.sbe import Message
from tensorpool.sbe.layout import SCHEMA_NAMES, BlockLayout, MessageLayout

ROOT = Path(__file__).parents[2]
JAVA = Path(__file__).parent / "java"
SCHEMAS = [ROOT / "schemas" / f"{name}.xml" for name in SCHEMA_NAMES]
INSTALL_HINT = "Java 17 is needed: apt-get install openjdk-17-jdk-headless maven"


class JavaCodec:
    """A running codec server. Owned by the test session."""

    def __init__(self, built: Path) -> None:
        # sbe-all contains Agrona, whose buffers use internal classes of the JDK.
        opened = ["--add-opens", "java.base/jdk.internal.misc=ALL-UNNAMED"]
        command = ["java", "-Xmx1g", "-XX:+UseSerialGC", *opened, "-cp", f"{built}/classes:{built}/lib/*"]
        self._process = subprocess.Popen(
            [*command, "tensorpool.interop.CodecServer", *map(str, SCHEMAS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )

    def encode(self, layout: MessageLayout, message: Message) -> bytes:
        """Encodes a message with Java."""
        return bytes.fromhex(self._request(layout, op="encode", fields=to_java_json(message, layout))["hex"])

    def decode(self, layout: MessageLayout, encoded: bytes) -> tuple[dict[str, Any], int]:
        """Decodes bytes with Java; returns the fields, constants included, and the decoded length."""
        reply = self._request(layout, op="decode", hex=encoded.hex())
        return reply["fields"], reply["length"]

    def _request(self, layout: MessageLayout, **request: Any) -> dict[str, Any]:
        request |= {"schema": layout.schema, "message": layout.name, "header": layout.has_header}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the codec server ended early"
        reply: dict[str, Any] = json.loads(line)
        assert "error" not in reply, f"the codec server on {layout.name}: {reply['error']}"
        return reply

    def close(self) -> None:
        """Ends the codec server."""
        self._process.communicate(timeout=30)


def to_java_json(value: Any, layout: BlockLayout, *, constants: bool = False) -> dict[str, Any]:
    """A message as the codec server's JSON: names of the schema, integers as strings, bytes as hex."""
    fields: dict[str, Any] = {}
    for field in layout.fields:
        if field.constant is not None:
            if constants:
                fields[field.name] = str(getattr(value, field.python_name))
            continue
        content = getattr(value, field.python_name)
        if content is None:
            fields[field.name] = None
        elif field.enum is not None:
            fields[field.name] = str(content).upper() if isinstance(content, bool) else content.name
        elif field.is_array:
            fields[field.name] = [str(element) for element in content]
        else:
            fields[field.name] = str(content)
    for group in layout.groups:
        entries = getattr(value, group.python_name)
        fields[group.name] = [to_java_json(entry, group, constants=constants) for entry in entries]
    for data in layout.data:
        content = getattr(value, data.python_name)
        fields[data.name] = (content.encode("ascii", "surrogateescape") if data.ascii else content).hex()
    return fields


def build_codec_server() -> Path:
    """Directory with the classes and jars of the codec server, built unless a build exists."""
    for tool in ("java", "javac", "mvn"):
        if shutil.which(tool) is None:
            pytest.fail(f"{tool} was not found. {INSTALL_HINT}", pytrace=False)
    sources = sorted(JAVA.glob("src/**/*.java"))
    digest = hashlib.sha256(_run(["javac", "-version"]).encode())
    for path in (JAVA / "pom.xml", *sources, *SCHEMAS):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    builds = ROOT / "build" / "interop"
    builds.mkdir(parents=True, exist_ok=True)
    target = builds / digest.hexdigest()[:20]
    with (builds / "lock").open("w") as lock:
        # Two test runs may start at once; the second waits for the build of the first.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=builds) as scratch:
                result = Path(scratch) / "codec-server"
                _build(result, sources)
                result.rename(target)
    return target


def _build(target: Path, sources: Sequence[Path]) -> None:
    jars, generated = target / "lib", target / "generated"
    maven = ["mvn", "-q", "-B", "-f", str(JAVA / "pom.xml"), "dependency:copy-dependencies"]
    _run([*maven, f"-DoutputDirectory={jars}"])
    strict = ["-Dsbe.validation.stop.on.error=true", "-Dsbe.validation.warnings.fatal=true"]
    tool = ["java", "-cp", f"{jars}/*", f"-Dsbe.output.dir={generated}", *strict]
    _run([*tool, "uk.co.real_logic.sbe.SbeTool", *map(str, SCHEMAS)])
    files = [*map(str, sources), *map(str, sorted(generated.glob("**/*.java")))]
    _run(["javac", "-nowarn", "-cp", f"{jars}/*", "-d", str(target / "classes"), *files])


def _run(command: Sequence[str]) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        output = (result.stdout + result.stderr).strip()[-2000:]
        pytest.fail(f"{command[0]} failed ({INSTALL_HINT}):\n{output}", pytrace=False)
    return result.stdout + result.stderr
