"""`tensorpool demo --hosts 2`: a camera on one host, a viewer on another, a bridge between them.

The hosts are two media drivers with memory of their own; all that one knows of the other comes over UDP on
loopback.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import click

from ..bridge import BridgeAgent, BridgeSettings
from ..client import Consumer, Producer
from ..context import open as open_context
from ..context.context import Context
from ..errors import FrameOverwritten
from ..runtime.config import Config
from ..runtime.runner import Runner
from .scene import DTYPE, FRAME_BYTES, NSLOTS, POOL, SHAPE, draw, is_whole

_SOURCE, _DEST = 10_000, 50_000
_UP_S: Final = 30.0
_SETTLE_S: Final = 30.0


def run(*, seconds: float, fps: int, as_json: bool) -> bool:
    """True if every frame is accounted for, and none had a wrong byte."""
    with ExitStack() as stack:
        temporary = tempfile.TemporaryDirectory(prefix=f"tensorpool-demo-{os.getpid()}-", dir="/dev/shm")
        base = Path(stack.enter_context(temporary))
        before = os.environ.get("XDG_STATE_HOME")
        # Locks and epoch marks go there too: the demo touches nothing of the user's.
        os.environ["XDG_STATE_HOME"] = str(base / "state")
        stack.callback(_put_back, before)
        film = _Film(stack, base)
        _say(as_json, "two hosts, a bridge between them: filming…")
        film.shoot(seconds, fps)
        result = film.books()
    if as_json:
        click.echo(json.dumps(result, indent=2))
    else:
        dropped = result["dropped"]
        click.echo(
            f"published {result['published']} = delivered {result['delivered']} + dropped by the sender "
            f"{dropped['sender']}, the network {dropped['network']}, the receiver {dropped['receiver']}"
        )
        click.echo(
            f"the viewer on the other host saw {result['seen']} frames of {FRAME_BYTES / 1024:.0f} KiB, "
            f"{result['wrong']} of them with a wrong byte; {result['rate_mib']:.0f} MiB/s"
        )
    return bool(result["adds_up"])


def _put_back(before: str | None) -> None:
    if before is None:
        del os.environ["XDG_STATE_HOME"]
    else:
        os.environ["XDG_STATE_HOME"] = before


def _say(as_json: bool, text: str) -> None:
    if not as_json:
        click.echo(text, err=True)


def _channel() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.bind(("127.0.0.1", 0))
        return f"aeron:udp?endpoint=127.0.0.1:{one.getsockname()[1]}"


class _Film:
    """Both hosts, and what happens on them."""

    def __init__(self, stack: ExitStack, base: Path) -> None:
        self._stack = stack
        self.seen = self.wrong = self.late = 0
        self._elapsed = 1.0
        here, there = (self._host(base, name) for name in ("camera", "lab"))
        ways = {"payload_channel": _channel(), "control_channel": _channel(), "metadata_channel": _channel()}
        self._receiver = self._bridge(there, "receive", ways)
        self._sender = self._bridge(here, "send", ways)
        self._producer: Producer = stack.enter_context(
            here.producer(_SOURCE, pools=[POOL], nslots=NSLOTS, name="demo camera")
        )
        self._consumer: Consumer = stack.enter_context(there.consumer(_DEST))
        self._until(self._is_up, _UP_S)

    def _host(self, base: Path, name: str) -> Context:
        place = base / name
        place.mkdir(mode=0o700)
        ctx = open_context(
            "embedded",
            aeron_dir=place / "aeron",
            shm_base_dir=place,
            namespace=name,
            announce_period=0.2,
        )
        return self._stack.enter_context(ctx)

    def _bridge(self, ctx: Context, direction: str, ways: dict[str, str]) -> BridgeAgent:
        mapping = {"source_stream_id": _SOURCE, "dest_stream_id": _DEST}
        table = {"instance_id": direction, "direction": direction, "mappings": [mapping], **ways}
        settings = Config.load(BridgeSettings, tables={"bridge": table}, environ={})[BridgeSettings]
        agent = BridgeAgent(ctx, settings)
        runner = Runner(agent)
        runner.start()
        self._stack.callback(runner.close)
        return agent

    def _is_up(self) -> bool:
        sent, received = self._sender.rows()[0], self._receiver.rows()[0]
        return bool(
            sent["connected"]
            and self._producer.is_connected
            and sent["epoch"] == received["source_epoch"] == str(self._producer.epoch)
            and received["destination"] == "attached"
            and str(self._consumer.epoch) == received["epoch"]
        )

    def _until(self, condition: Callable[[], bool], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        return True

    def shoot(self, seconds: float, fps: int) -> None:
        began = time.monotonic()
        number = 0
        while (now := time.monotonic()) < began + seconds:
            if now >= began + number / fps:
                with self._producer.claim(SHAPE, DTYPE) as slot:
                    draw(slot.array, slot.seq)
                number += 1
            if not self._look():
                time.sleep(0.0002)
        self._elapsed = time.monotonic() - began

    def _look(self) -> int:
        frames = self._consumer.poll()
        for frame in frames:
            try:
                with frame:
                    whole = is_whole(frame.array, frame.seq)
            except FrameOverwritten:
                self.late += 1
                continue
            self.seen += 1
            self.wrong += not whole
        return len(frames)

    def books(self) -> dict[str, Any]:
        """When all is told and nothing is on the way any more."""
        committed = self._producer.ledger().committed

        def is_told() -> bool:
            self._look()
            ledger = self._receiver.rows()[0]["ledger"]
            return bool(ledger and ledger["published"] == committed)

        told = self._until(is_told, _SETTLE_S)
        time.sleep(0.3)
        self._look()
        row = self._receiver.rows()[0]
        ledger = row["ledger"]
        consumer = self._consumer.ledger()
        adds_up = (
            told
            and ledger["exact"]
            and ledger["published"] == ledger["delivered"] + sum(ledger["dropped"].values())
            and ledger["dropped"]["network"] >= 0
            and consumer.balanced
            and self.wrong == 0
            and self.seen == consumer.received
        )
        return {
            **ledger,
            "committed": committed,
            "seen": self.seen,
            "viewer_dropped": {name: n for name, n in consumer.dropped.items() if n},
            "wrong": self.wrong,
            "rate_mib": ledger["delivered"] * FRAME_BYTES / self._elapsed / (1 << 20),
            "adds_up": adds_up,
        }
