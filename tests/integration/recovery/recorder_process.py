"""A recorder process of a deployment, and the ledger that it prints at its end."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Self

from tests.remote_process import TIMEOUT_S

from .deployment import Deployment


class RecorderProcess:
    """A process that runs `tensorpool record`."""

    def __init__(self, deployment: Deployment, out: Path) -> None:
        self._ready = deployment.config.with_name(f"recorder-{os.urandom(4).hex()}")
        self._log = self._ready.with_suffix(".log")
        arguments = ["record", "--config", str(deployment.config), "--ready-file", str(self._ready)]
        arguments += ["--out", str(out), "--stream", str(deployment.stream_id), "--buffer", "8MiB"]
        arguments += ["--aeron-dir", str(deployment.aeron_dir), "--shm-base-dir", str(deployment.base)]
        with self._log.open("wb") as log:
            self._process = deployment.fork_server.start(
                "tensorpool.cli:main", *arguments, "--quiet", "--json", pipes=False, log=log
            )

    @property
    def alive(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    @property
    def ready(self) -> bool:
        """Whether the recorder has written its ready file."""
        assert self.alive, self._log.read_text()
        return self._ready.exists()

    def end(self) -> dict[str, Any]:
        """Ends the recorder in good order, which needs every sequence accounted for; returns its ledger."""
        self._process.terminate()
        status = self._process.wait(TIMEOUT_S)
        text = self._log.read_text()
        assert status == 0, text
        ledger: dict[str, Any] = json.loads(text[text.index("{\n") if "{\n" in text else text.index("{") :])
        return ledger

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.alive:
            self._process.kill()
            self._process.wait(TIMEOUT_S)
