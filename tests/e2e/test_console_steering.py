"""Orders from the page in Chromium, to a real driver, supervisor, recorder and service."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import tensorpool as tp
from tensorpool.client import ReportOptions
from tensorpool.console.access import Tokens, ViewerRole, new_token
from tensorpool.console.actions import request_handlers
from tensorpool.console.server import ConsoleOptions, ConsoleServer
from tensorpool.service import Property, Service
from tests.browser import Browser, browser, missing
from tests.e2e.commandline import CommandLine, running
from tests.e2e.console_system import detector, publishing, reading

pytestmark = [
    pytest.mark.skipif(missing() is not None, reason=missing() or ""),
    pytest.mark.timeout(400),
]

DEADLINE_S = 120
TOKEN = "the-token-of-the-driver"
WaitUntil = Callable[..., Any]


class Shutter(Service, name="shutter"):
    """A service with a property."""

    gain = Property(1.0, doc="The gain.")


@dataclass
class Site:
    """A driver, a supervisor and a console as they run at a real site, and a browser."""

    server: ConsoleServer
    page: Browser
    consumer: tp.Consumer
    shutter: Shutter
    driver: subprocess.Popen[str]
    stream_id: int
    runs: Path
    commands: CommandLine

    def is_supervised(self, consumer_id: int) -> bool:
        """Whether the supervisor has seen the consumer: it receives reports later or sooner than the page."""
        done = self.commands.run("supervisor", "status", "--json")
        streams = json.loads(done.stdout)["system"] if done.returncode == 0 else []
        return any(
            consumer["consumer_id"] == consumer_id for stream in streams for consumer in stream["consumers"]
        )

    @property
    def orders(self) -> list[str]:
        """What is on the record."""
        rows = json.loads(self.server.feed.whole()[1])["set"]["notices"].values()
        return [row["text"] for row in rows if row["kind"] == "order"]

    def show(self, kind: str, key: str) -> None:
        """Opens the details of something."""
        self.page.run(f"tensorpool.select({json.dumps(kind)}, {json.dumps(key)})")

    def has(self, text: str, within: str = "body") -> bool:
        """Whether there is a button with this text."""
        return bool(self.page.run(_BUTTON % (json.dumps(within), json.dumps(text)) + "return Boolean(found)"))

    def click(self, text: str, within: str = "body") -> None:
        """Clicks the button with this text."""
        self.page.run(_BUTTON % (json.dumps(within), json.dumps(text)) + "found.click()")

    def order(self, values: dict[str, str], wait_until: WaitUntil) -> str:
        """Fills in the dialog, reads the sentence, confirms it, and waits until the dialog has closed."""
        for name, value in values.items():
            self.page.run(f"document.getElementById('order-{name}').value = {json.dumps(value)}")
        self.click("Continue", "dialog")
        refusal = "return document.querySelector('dialog [role=alert]').innerText"
        wait_until(lambda: self.has("Confirm", "dialog") or self.page.run(refusal), timeout=DEADLINE_S)
        assert self.page.run(refusal) == ""
        sentence: str = self.page.run("return document.querySelector('dialog .why.limited').innerText")
        self.click("Confirm", "dialog")
        closed = "return !document.getElementById('dialog').open"
        wait_until(lambda: self.page.run(closed) or self.page.run(refusal), timeout=DEADLINE_S)
        assert self.page.run(refusal) == ""
        wait_until(lambda: f"{sentence} done" in self.orders, timeout=DEADLINE_S)
        return sentence


_BUTTON = (
    "const found = [...document.querySelector(%s).querySelectorAll('button')]"
    ".find(b => b.innerText.trim() === %s && b.offsetParent !== null);"
)


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """Ends the process in good order, so that it removes its files."""
    with running(process):
        yield process
        process.terminate()
        process.wait(DEADLINE_S)


@pytest.fixture
def site(
    aeron_dir: Path, shm_base: Path, tmp_path: Path, free_stream_id: int, wait_until: WaitUntil,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Site]:  # fmt: skip
    commands = CommandLine(aeron_dir, shm_base)
    monkeypatch.setenv("TENSORPOOL_SHM__BASE_DIR", str(shm_base))
    config = tmp_path / "driver.toml"
    config.write_text(
        f'[service]\ntoken = "{TOKEN}"\n[driver]\nany_stream = true\n[aeron]\nmedia_driver = "external"\n'
    )
    config.chmod(0o600)
    ready, runs = tmp_path / "ready", tmp_path / "runs"
    runs.mkdir()
    with ExitStack() as stack:
        stack.enter_context(tp.MediaDriver(aeron_dir))
        log = stack.enter_context((tmp_path / "log").open("w"))
        driver = stack.enter_context(
            ended(commands.start("driver", "--config", str(config), "--ready-file", str(ready), stderr=log))
        )
        wait_until(ready.exists, timeout=DEADLINE_S)
        stack.enter_context(ended(commands.start("supervisor", stderr=log)))
        ctx = stack.enter_context(
            tp.open("driver", aeron_dir=aeron_dir, media_driver="external", shm_base_dir=shm_base)
        )
        producer = stack.enter_context(ctx.producer(free_stream_id, pools=["256KiB"], nslots=16, name="eye"))
        consumer = stack.enter_context(ctx.consumer(free_stream_id, label="fit"))
        stack.enter_context(publishing(producer, detector, 100))
        stack.enter_context(reading(consumer))
        shutter = Shutter()
        stack.enter_context(ctx.serve(shutter))
        watching = stack.enter_context(
            tp.open("standalone", aeron_dir=aeron_dir, media_driver="external", shm_base_dir=shm_base)
        )
        watching.report_options = ReportOptions.none()
        options = ConsoleOptions(port=0, tokens=Tokens(steer=new_token()), period_s=0.5, recordings=(runs,))
        server = stack.enter_context(ConsoleServer(watching, options, handlers=request_handlers(TOKEN)))
        page = stack.enter_context(browser())
        page.resize(1440, 900)
        page.visit(server.url())
        yield Site(server, page, consumer, shutter, driver, free_stream_id, runs, commands)


def consumer_view(site: Site) -> Any:
    stream = site.server.feed.snapshot.stream(site.stream_id)
    return next((c for c in stream.consumers if c.label == "fit"), None) if stream is not None else None


def test_every_order_is_confirmed_obeyed_and_on_the_record(site: Site, wait_until: WaitUntil) -> None:
    wait_until(lambda: (c := consumer_view(site)) is not None and c.pid is not None, timeout=DEADLINE_S)
    number = consumer_view(site).consumer_id
    wait_until(lambda: site.is_supervised(number), timeout=DEADLINE_S)
    target = f"stream_id={site.stream_id}, consumer_id={number}"
    site.show("consumer", f"{site.stream_id}/{number}")
    wait_until(lambda: site.has("Limit"), timeout=DEADLINE_S)

    # Limit, by the supervisor.
    site.click("Limit", "#drawer")
    sentence = site.order({"max_rate_hz": "7", "reason": "too fast"}, wait_until)
    assert sentence == f'Call limit({target}, max_rate_hz=7, reason="too fast") of supervisor.'
    wait_until(lambda: consumer_view(site).is_forced, timeout=DEADLINE_S)
    wait_until(lambda: 0 < (consumer_view(site).rate_hz or 0) < 8, timeout=DEADLINE_S)

    # Redirect to a bridge, and release.
    site.click("Redirect", "#drawer")
    channels = (
        "payload=aeron%3Audp%3Fendpoint%3D127.0.0.1%3A9&payload_stream=1"
        "&control=aeron%3Audp%3Fendpoint%3D127.0.0.1%3A9&control_stream=2"
    )
    uri = f"bridge://{site.stream_id}?{channels}&stream={site.stream_id}"
    sentence = site.order({"uri": uri}, wait_until)
    assert "Call redirect(" in sentence
    wait_until(lambda: consumer_view(site).fallback_uri, timeout=DEADLINE_S)
    site.click("Release", "#drawer")
    site.order({}, wait_until)
    wait_until(lambda: not consumer_view(site).is_forced, timeout=DEADLINE_S)

    # The property of a service.
    site.page.run("tensorpool.select(null); location.hash = '#/services'")
    wait_until(
        lambda: site.page.run("return document.body.innerText.includes('shutter')"), timeout=DEADLINE_S
    )
    site.page.run("tensorpool.view.show('service:shutter')")
    wait_until(lambda: site.has("Set"), timeout=DEADLINE_S)
    site.click("Set")
    assert site.order({"value": "2.5"}, wait_until) == "Set gain of shutter to 2.5."
    assert site.shutter.gain == 2.5

    # A new recording, ended by the page.
    site.page.run("location.hash = '#/recordings'")
    wait_until(lambda: site.has("New recording"), timeout=DEADLINE_S)
    site.click("New recording")
    assert site.order({"name": "run-1"}, wait_until).startswith("Record eye into ")
    wait_until(lambda: any(r.rows for r in site.server.feed.snapshot.recorders), timeout=DEADLINE_S)
    wait_until(lambda: site.has("End", ".jobs"), timeout=DEADLINE_S)
    site.click("End", ".jobs")
    site.order({}, wait_until)
    wait_until(
        lambda: "done" in site.page.run("return document.querySelector('.jobs').innerText"),
        timeout=DEADLINE_S,
    )

    # A lease: its consumer loses the stream, and attaches again.
    site.show("stream", str(site.stream_id))
    wait_until(lambda: site.has("Revoke", "#drawer"), timeout=DEADLINE_S)
    site.click("Revoke", "#drawer")
    assert "Call revoke(lease_id=" in site.order({}, wait_until)

    # The driver.
    site.page.run("location.hash = '#/system'")
    tag = site.server.feed.snapshot.drivers[0].tag
    site.show("driver", tag)
    wait_until(lambda: site.has("Stop", "#drawer"), timeout=DEADLINE_S)
    site.click("Stop", "#drawer")
    site.order({"reason": "end of the shift"}, wait_until)
    assert site.driver.wait(DEADLINE_S) == 0
    assert len(site.orders) == 8


def test_page_that_only_watches_has_no_orders(site: Site, wait_until: WaitUntil) -> None:
    site.page.visit(site.server.url(ViewerRole.WATCH))
    wait_until(
        lambda: site.page.run("return document.getElementById('role').innerText") == "read-only",
        timeout=DEADLINE_S,
    )
    wait_until(lambda: consumer_view(site) is not None, timeout=DEADLINE_S)
    site.show("consumer", f"{site.stream_id}/{consumer_view(site).consumer_id}")
    wait_until(
        lambda: "latency" in site.page.run("return document.getElementById('drawer').innerText"),
        timeout=DEADLINE_S,
    )
    assert not site.has("Limit")
    site.page.run("tensorpool.select(null); location.hash = '#/recordings'")
    wait_until(lambda: site.has("Refresh"), timeout=DEADLINE_S)
    assert not site.has("New recording")
    assert site.orders == []
