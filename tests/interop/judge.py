"""Builds the Java judge, keeps what was built, and talks to it line by line.

The judge is a small program around the codecs that sbe-tool generates from our own schema files. What it
is built from is hashed; the result stays under `build/interop/<hash>/` for the next run.
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
NEEDED = "Java 17 is needed: apt-get install openjdk-17-jdk-headless maven"


class Judge:
    """A running judge. Owned by the test session."""

    def __init__(self, built: Path) -> None:
        # sbe-all brings Agrona, whose buffers reach into the JDK.
        opened = ["--add-opens", "java.base/jdk.internal.misc=ALL-UNNAMED"]
        command = ["java", "-Xmx1g", "-XX:+UseSerialGC", *opened, "-cp", f"{built}/classes:{built}/lib/*"]
        self._process = subprocess.Popen(
            [*command, "tensorpool.interop.Judge", *map(str, SCHEMAS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )

    def encode(self, layout: MessageLayout, message: Message) -> bytes:
        """The bytes that Java writes for this message."""
        return bytes.fromhex(self._ask(layout, op="encode", fields=told(message, layout))["hex"])

    def decode(self, layout: MessageLayout, encoded: bytes) -> tuple[dict[str, Any], int]:
        """What Java reads from these bytes, constants included, and how many it read."""
        answer = self._ask(layout, op="decode", hex=encoded.hex())
        return answer["fields"], answer["length"]

    def _ask(self, layout: MessageLayout, **request: Any) -> dict[str, Any]:
        request |= {"schema": layout.schema, "message": layout.name, "header": layout.has_header}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the judge ended early"
        answer: dict[str, Any] = json.loads(line)
        assert "error" not in answer, f"the judge on {layout.name}: {answer['error']}"
        return answer

    def close(self) -> None:
        self._process.communicate(timeout=30)


def told(value: Any, layout: BlockLayout, *, constants: bool = False) -> dict[str, Any]:
    """A message in the judge's words: names of the schema, integers as strings, bytes as hex."""
    words: dict[str, Any] = {}
    for field in layout.fields:
        if field.constant is not None:
            if constants:
                words[field.name] = str(getattr(value, field.python_name))
            continue
        got = getattr(value, field.python_name)
        if got is None:
            words[field.name] = None
        elif field.enum is not None:
            words[field.name] = str(got).upper() if isinstance(got, bool) else got.name
        elif field.is_array:
            words[field.name] = [str(element) for element in got]
        else:
            words[field.name] = str(got)
    for group in layout.groups:
        entries = getattr(value, group.python_name)
        words[group.name] = [told(entry, group, constants=constants) for entry in entries]
    for data in layout.data:
        got = getattr(value, data.python_name)
        words[data.name] = (got.encode("ascii", "surrogateescape") if data.ascii else got).hex()
    return words


def built_judge() -> Path:
    """The directory with the judge's classes and jars, built if this was not done before."""
    for tool in ("java", "javac", "mvn"):
        if shutil.which(tool) is None:
            pytest.fail(f"{tool} was not found. {NEEDED}", pytrace=False)
    sources = sorted(JAVA.glob("src/**/*.java"))
    digest = hashlib.sha256(_run(["javac", "-version"]).encode())
    for path in (JAVA / "pom.xml", *sources, *SCHEMAS):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    place = ROOT / "build" / "interop"
    place.mkdir(parents=True, exist_ok=True)
    target = place / digest.hexdigest()[:20]
    with (place / "lock").open("w") as lock:
        # Two test runs may start at once; the second waits and finds it done.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=place) as scratch:
                made = Path(scratch) / "judge"
                _build(made, sources)
                made.rename(target)
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
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stdout + done.stderr).strip()[-2000:]
        pytest.fail(f"{command[0]} failed ({NEEDED}):\n{said}", pytrace=False)
    return done.stdout + done.stderr
