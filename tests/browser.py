"""A headless Chromium, controlled over WebDriver by chromedriver."""

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

TIMEOUT_S = 60


def missing() -> str | None:
    """Text that says which program is missing; None if the browser is installed."""
    for name in ("chromium", "chromedriver"):
        if shutil.which(name) is None:
            return f"{name} is not installed (Debian: apt-get install chromium chromium-driver)"
    return None


class Browser:
    """One browser window, and the console log of its pages."""

    def __init__(self, address: str, session: str) -> None:
        self._base = f"{address}/session/{session}"

    def open(self, page: Path) -> None:
        """Loads a page from a file."""
        call("POST", f"{self._base}/url", {"url": page.absolute().as_uri()})

    def visit(self, url: str) -> None:
        """Loads a page of a server on this machine."""
        call("POST", f"{self._base}/url", {"url": url})

    def address(self) -> str:
        """The address of the page that is shown."""
        url: str = call("GET", f"{self._base}/url")
        return url

    def move(self, x: float, y: float) -> None:
        """Moves the pointer."""
        self.devtools("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def scroll(self, x: float, y: float, delta: float) -> None:
        """Turns the wheel at a place."""
        self.devtools("Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=delta)

    def press(self, key: str, code: int = 0) -> None:
        """Presses a key, as in `Tab` or `Enter`."""
        text = {"text": "\r" if key == "Enter" else key} if len(key) == 1 or key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.devtools(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code,
                **(text if kind == "keyDown" else {}),
            )  # fmt: skip

    def run(self, script: str) -> Any:
        """Runs the body of a JavaScript function; returns its value."""
        return call("POST", f"{self._base}/execute/sync", {"script": script, "args": []})

    def devtools(self, command: str, **parameters: Any) -> Any:
        """Runs a command of the DevTools protocol."""
        return call("POST", f"{self._base}/goog/cdp/execute", {"cmd": command, "params": parameters})

    def resize(self, width: int, height: int = 800, *, is_phone: bool = False) -> None:
        """Sets the size of the viewport."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=is_phone,
        )  # fmt: skip

    def prefer(self, scheme: str) -> None:
        """Sets the preferred colour scheme, `dark` or `light`."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.devtools("Emulation.setEmulatedMedia", features=features)

    def log(self) -> list[dict[str, Any]]:
        """Console log of the page: blocked requests, script errors."""
        entries: list[dict[str, Any]] = call("POST", f"{self._base}/se/log", {"type": "browser"})
        return entries

    def screenshot(self) -> bytes:
        """The whole page as PNG."""
        result = self.devtools("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        return base64.b64decode(result["data"])

    def pdf(self) -> bytes:
        """The page as PDF, in A4."""
        result = self.devtools("Page.printToPDF", preferCSSPageSize=True, paperWidth=8.27, paperHeight=11.69)
        return base64.b64decode(result["data"])


def call(method: str, url: str, body: Any = None) -> Any:
    """Sends a WebDriver request; returns the value of its response."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            return json.load(response)["value"]
    except urllib.error.HTTPError as error:
        with error:
            raise AssertionError(error.read().decode()) from None


@contextmanager
def browser() -> Iterator[Browser]:
    """Runs a private browser without network access."""
    with tempfile.TemporaryDirectory() as directory:
        driver, port = _start_driver(Path(directory, "driver.log"))
        try:
            address = f"http://127.0.0.1:{port}"
            options = {
                "args": [
                    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                    "--hide-scrollbars", "--proxy-server=127.0.0.1:9", f"--user-data-dir={directory}/profile",
                ]
            }  # fmt: skip
            capabilities = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
            session = call("POST", f"{address}/session", {"capabilities": {"alwaysMatch": capabilities}})
            try:
                yield Browser(address, session["sessionId"])
            finally:
                call("DELETE", f"{address}/session/{session['sessionId']}")
        finally:
            driver.terminate()
            driver.wait(TIMEOUT_S)


def _start_driver(log: Path) -> tuple[subprocess.Popen[bytes], int]:
    """A running chromedriver and its port.

    It picks a port that is free on IPv6, and ends if another program has the same one on IPv4: then another
    start picks another port.
    """
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        with log.open("wb") as out:
            driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=out, stderr=subprocess.STDOUT)
        while driver.poll() is None and time.monotonic() < deadline:
            for line in log.read_text("utf-8", "replace").splitlines():
                if "started successfully on port" in line:
                    return driver, int(line.rpartition(" ")[2].strip("."))
            time.sleep(0.05)
        driver.kill()
        driver.wait()
    raise AssertionError(f"chromedriver did not start: {log.read_text('utf-8', 'replace')}")
