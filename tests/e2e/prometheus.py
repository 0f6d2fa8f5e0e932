"""A real Prometheus, as a process of the test's own."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port

PATIENCE_S = 60
# Where tools/prometheus puts it.
_UNPACKED = Path(__file__).parents[2] / "build" / "prometheus" / "usr" / "bin"


def program(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path=str(_UNPACKED))


needs_prometheus = pytest.mark.skipif(
    not (program("prometheus") and program("promtool")),
    reason="no prometheus and promtool: apt-get install prometheus, or make test, which fetches them",
)


@dataclass(frozen=True)
class Prometheus:
    """Asks it as a board does."""

    address: str
    log: Path

    def get(self, path: str, **query: str) -> Any:
        url = f"http://{self.address}{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as response:
            return json.loads(response.read())["data"]

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=PATIENCE_S):
                return True
        except (urllib.error.URLError, OSError):
            return False

    def query(self, expression: str) -> list[Any]:
        """What an instant query gives; an error of the query raises."""
        found: list[Any] = self.get("/api/v1/query", query=expression)["result"]
        return found


@contextmanager
def prometheus(directory: Path, target: str, rules: Path) -> Iterator[Prometheus]:
    """Scrapes the target four times a second, with the alert rules loaded."""
    config = {
        "global": {"scrape_interval": "250ms", "scrape_timeout": "250ms", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": [{"job_name": "tensorpool", "static_configs": [{"targets": [target]}]}],
    }
    # JSON is YAML too.
    (directory / "prometheus.yml").write_text(json.dumps(config))
    address = f"127.0.0.1:{free_port()}"
    log = directory / "prometheus.log"
    command = [
        str(program("prometheus")),
        f"--config.file={directory / 'prometheus.yml'}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address={address}",
        "--log.level=warn",
    ]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, cwd=directory, env={"GOMAXPROCS": "1"})
        try:
            found = Prometheus(address, log)
            deadline = time.monotonic() + PATIENCE_S
            while not found.is_ready():
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.05)
            yield found
        finally:
            process.kill()
            process.wait()
