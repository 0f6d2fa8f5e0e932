"""mypy checks the fields of messages."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

# Each line with a comment is to be errors fault with, for that reason; the others are to pass.
CODE = """\
from tensorpool import sbe

request = sbe.ShmAttachRequest(correlation_id=1, stream_id=2, client_id=3, role=sbe.Role.PRODUCER)
text: bytes = request.encode()
again: sbe.ShmAttachRequest = sbe.ShmAttachRequest.decode(text)
mode: sbe.PublishMode | None = again.publish_mode
pools = (sbe.PayloadPool(pool_id=1, pool_nslots=2, stride_bytes=64),)
answer = sbe.ShmAttachResponse(correlation_id=1, code=sbe.ResponseCode.OK, payload_pools=pools)
uris: list[str] = [pool.region_uri for pool in answer.payload_pools]
sbe.ShmAttachRequest(stream_id=2, client_id=3, role=sbe.Role.PRODUCER)  # call-arg
sbe.ShmAttachRequest(correlation_id=1, stream_id="2", client_id=3, role=sbe.Role.PRODUCER)  # arg-type
sbe.ShmAttachRequest(correlation_id=1, stream_id=2, client_id=3, role=1)  # arg-type
sbe.ShmAttachRequest(1, 2, 3, sbe.Role.PRODUCER)  # misc
print(request.steam_id)  # attr-defined
lease: int = answer.lease_id  # assignment
sbe.decode(text).stream_id  # attr-defined
"""


@pytest.mark.timeout(300)
def test_mypy_sees_the_fields(tmp_path):
    path = tmp_path / "uses_messages.py"
    path.write_text(CODE)
    environment = {**os.environ, "MYPYPATH": str(ROOT / "python")}
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--config-file", "", str(path)]
    cache = ["--cache-dir", str(ROOT / "build" / "mypy-messages")]
    done = subprocess.run(
        [*command, *cache], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    errors = {
        (int(line), code)
        for name, line, code in re.findall(
            r"^(.+?):(\d+): error: .*\[([a-z-]+)\]$", done.stdout, re.MULTILINE
        )
        if name.endswith(path.name)
    }
    expected = {
        (number, line.partition("  # ")[2])
        for number, line in enumerate(CODE.splitlines(), 1)
        if "  # " in line
    }
    assert {line for line, _ in errors} == {line for line, _ in expected}, done.stdout + done.stderr
    assert expected - {(13, "misc")} <= errors
