"""One host of `tensorpool demo --hosts 2`, a process: a driver, its end of the bridge, and who works there.

On the first a camera films. On the second a viewer looks at every pixel, and a recorder takes all to disk.
What one knows of the other comes over UDP.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from ..bridge import BridgeAgent, BridgeSettings
from ..client import Consumer
from ..context import open as open_context
from ..context.context import Context
from ..errors import FrameOverwritten
from ..runtime.config import Config
from ..runtime.runner import Runner
from .checks import of_host, whole_faults
from .processes import DTYPE, NSLOTS, POOL, SHAPE, Reports, fill_pattern, matches_pattern, was_told

SOURCE: Final = 10_000
DEST: Final = 50_000
Name = Literal["camera", "lab"]
_LOOK_S: Final = 0.001
_UP_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Place:
    """What a host's process is told when it starts."""

    name: Name
    base: str
    recording: str
    channels: dict[str, str]
    seconds: float
    fps: int

    def arguments(self) -> list[str]:
        return [json.dumps(asdict(self))]


def _host(stack: ExitStack, place: Place) -> tuple[Context, BridgeAgent]:
    base = Path(place.base)
    ctx = stack.enter_context(
        open_context(
            "embedded",
            aeron_dir=base / "aeron",
            shm_base_dir=base,
            namespace=place.name,
            announce_period=0.2,
        )
    )
    direction = "send" if place.name == "camera" else "receive"
    mapping = {"source_stream_id": SOURCE, "dest_stream_id": DEST}
    table = {"instance_id": place.name, "direction": direction, "mappings": [mapping], **place.channels}
    settings = Config.load(BridgeSettings, tables={"bridge": table}, environ={})[BridgeSettings]
    agent = BridgeAgent(ctx, settings)
    runner = Runner(agent)
    runner.start()
    stack.callback(runner.close)
    return ctx, agent


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _UP_S
    while not condition() and time.monotonic() < deadline and not was_told():
        time.sleep(_LOOK_S)


def film(place: Place, reports: Reports) -> None:
    """The camera's host."""
    with ExitStack() as stack:
        ctx, bridge = _host(stack, place)
        camera = stack.enter_context(ctx.producer(SOURCE, pools=[POOL], nslots=NSLOTS, name="demo camera"))
        _until(
            lambda: (
                bool(bridge.rows()[0]["connected"])
                and camera.is_connected
                and bridge.rows()[0]["epoch"] == str(camera.epoch)
            )
        )
        reports.say("ready", epoch=str(camera.epoch))
        sys.stdin.readline()
        began = time.monotonic()
        for number in range(max(1, round(place.seconds * place.fps))):
            if (ahead := began + number / place.fps - time.monotonic()) > 0:
                time.sleep(ahead)
            if was_told():
                sys.stdin.readline()
                break
            with camera.claim(SHAPE, DTYPE) as slot:
                fill_pattern(slot.array, slot.seq)
            if reports.due():
                reports.say("sample", frames=camera.ledger().committed)
        ledger = camera.ledger()
        reports.say("ledger", committed=ledger.committed, balanced=ledger.balanced)
        # The bridge goes on telling its account until the other end has it.
        sys.stdin.readline()
        reports.say("whole", **_whole(ctx))


class _Viewer:
    """Looks at every pixel of every frame."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.seen = self.wrong = 0

    def look(self) -> int:
        frames = self.consumer.poll()
        for frame in frames:
            try:
                with frame:
                    whole = matches_pattern(frame.array, frame.seq)
            except FrameOverwritten:
                continue
            self.seen += 1
            self.wrong += not whole
        return len(frames)


def watch(place: Place, reports: Reports) -> None:
    """The other host."""
    with ExitStack() as stack:
        ctx, bridge = _host(stack, place)
        viewer = _Viewer(stack.enter_context(ctx.consumer(DEST)))
        recorder = ctx.record(place.recording, streams=[DEST], buffer="64MiB", keep_free="256MiB")
        with recorder:
            reports.say("there")
            told = ""
            while not was_told():
                row = bridge.rows()[0]
                epoch = str(viewer.consumer.epoch)
                # Ready for that epoch of the source: everybody here has the one that was made for it.
                if (
                    row["destination"] == "attached"
                    and epoch == row["epoch"] == str(recorder.mapped()[DEST])
                    and row["source_epoch"] != told
                ):
                    told = row["source_epoch"]
                    reports.say(f"mapped-{told}")
                if not viewer.look():
                    time.sleep(_LOOK_S)
                if reports.due():
                    ledger = bridge.rows()[0]["ledger"]
                    reports.say("sample", frames=viewer.seen, ledger=ledger, rows=recorder.stats().rows)
            viewer.look()
            row = bridge.rows()[0]
            whole = _whole(ctx)
        reports.say("ledger", **_books(viewer, row, recorder), **whole)


def _whole(ctx: Context) -> dict[str, Any]:
    """Every path on this host, as somebody hears it who only listens."""
    rows = of_host(ctx)
    return {"paths": [row.to_json() for row in rows], "faults": whole_faults(rows)}


def _books(viewer: _Viewer, row: dict[str, Any], recorder: Any) -> dict[str, Any]:
    consumer = viewer.consumer.ledger()
    pages = [
        {"rows": one.rows, "gaps": dict(one.gaps), "span": one.span, "balanced": one.balanced}
        for one in recorder.ledger()
    ]
    return {
        "bridge": row["ledger"],
        "seen": viewer.seen,
        "wrong": viewer.wrong,
        "viewer": {
            "span": consumer.span,
            "received": consumer.received,
            "dropped": {name: n for name, n in consumer.dropped.items() if n},
            "balanced": consumer.balanced,
        },
        "recorder": pages,
    }


if __name__ == "__main__":
    _place = Place(**json.loads(sys.argv[1]))
    (film if _place.name == "camera" else watch)(_place, Reports())
