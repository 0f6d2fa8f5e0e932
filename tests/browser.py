"""A real browser for pages: Chromium through its driver, spoken to in plain WebDriver."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PATIENCE_S = 60


def missing() -> str | None:
    """Why there is no browser here; None if there is one."""
    for name in ("chromium", "chromedriver"):
        if shutil.which(name) is None:
            return f"{name} is not installed (Debian: apt-get install chromium chromium-driver)"
    return None


class Browser:
    """One window. What pages write to the console is kept."""

    def __init__(self, address: str, session: str) -> None:
        self._base = f"{address}/session/{session}"

    def open(self, page: Path) -> None:
        call("POST", f"{self._base}/url", {"url": page.absolute().as_uri()})

    def run(self, script: str) -> Any:
        """The value of a JavaScript function's body."""
        return call("POST", f"{self._base}/execute/sync", {"script": script, "args": []})

    def devtools(self, command: str, **parameters: Any) -> Any:
        return call("POST", f"{self._base}/goog/cdp/execute", {"cmd": command, "params": parameters})

    def resize(self, width: int, height: int = 800, *, is_phone: bool = False) -> None:
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=is_phone,
        )  # fmt: skip

    def prefer(self, scheme: str) -> None:
        """`dark` or `light`."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.devtools("Emulation.setEmulatedMedia", features=features)

    def log(self) -> list[dict[str, Any]]:
        """What went wrong on the page: blocked requests, errors of scripts."""
        found: list[dict[str, Any]] = call("POST", f"{self._base}/se/log", {"type": "browser"})
        return found

    def picture(self) -> bytes:
        """The whole page as PNG."""
        made = self.devtools("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        return base64.b64decode(made["data"])

    def pdf(self) -> bytes:
        """As it would be printed on A4."""
        made = self.devtools("Page.printToPDF", preferCSSPageSize=True, paperWidth=8.27, paperHeight=11.69)
        return base64.b64decode(made["data"])


def call(method: str, url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return json.load(answer)["value"]
    except urllib.error.HTTPError as error:
        with error:
            raise AssertionError(error.read().decode()) from None


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser of the test's own, which is gone at the end. It reaches no network."""
    with tempfile.TemporaryDirectory() as home:
        log = Path(home, "driver.log")
        with log.open("wb") as out:
            driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=out, stderr=subprocess.STDOUT)
        try:
            address = f"http://127.0.0.1:{_port(driver, log)}"
            options = {
                "args": [
                    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                    "--hide-scrollbars", "--proxy-server=127.0.0.1:9", f"--user-data-dir={home}/profile",
                ]
            }  # fmt: skip
            wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
            made = call("POST", f"{address}/session", {"capabilities": {"alwaysMatch": wanted}})
            try:
                yield Browser(address, made["sessionId"])
            finally:
                call("DELETE", f"{address}/session/{made['sessionId']}")
        finally:
            driver.terminate()
            driver.wait(PATIENCE_S)


def _port(driver: subprocess.Popen[bytes], log: Path) -> int:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        for line in log.read_text("utf-8", "replace").splitlines():
            if "started successfully on port" in line:
                return int(line.rpartition(" ")[2].strip("."))
        if driver.poll() is not None:
            break
        time.sleep(0.05)
    raise AssertionError(f"chromedriver does not start: {log.read_text('utf-8', 'replace')}")
