"""Orders and recordings through the console: who may give orders, and what is on the record."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.sync.client import ClientConnection

from tensorpool.console.access import ViewerRole
from tensorpool.console.actions import SharedReply, order_text
from tensorpool.console.server import ConsoleServer
from tensorpool.service import Property, Service, command
from tests.e2e.console_system import Laboratory, console, detector, laboratory
from tests.integration.console.test_server import receive, receive_frame, send, session, viewer

DEADLINE_S = 60
WaitUntil = Callable[..., None]


class Shutter(Service, name="shutter"):
    """A service with a property and a command."""

    gain = Property(1.0, doc="The gain.")
    drift = Property(float("nan"), doc="Not measured yet.")

    @command
    def expose(self, milliseconds: int) -> dict[str, int]:
        """Opens the shutter."""
        return {"opened_ms": milliseconds}


@pytest.fixture
def lab(aeron_dir: Path, shm_base: Path) -> Iterator[Laboratory]:
    with laboratory(aeron_dir, shm_base) as system:
        yield system


def ask(websocket: ClientConnection, what: str, **arguments: Any) -> Any:
    """The result of a request, or its error as text."""
    send(websocket, type="ask", id=7, what=what, arguments=arguments)
    while (reply := receive(websocket, "reply"))["id"] != 7:
        pass
    return reply["error"] if "error" in reply else reply["result"]


@pytest.fixture
def shutter_console(lab: Laboratory, wait_until: WaitUntil) -> Iterator[ConsoleServer]:
    with lab.context.serve(Shutter()), console(lab, period_s=0.2) as server:
        wait_until(
            lambda: any(s.tag == "service:shutter" for s in server.feed.snapshot.services), timeout=DEADLINE_S
        )
        yield server


def notices(server: ConsoleServer) -> list[str]:
    document = server.feed.whole()[1]
    # Empty until the first period has passed.
    rows = json.loads(document)["set"]["notices"].values() if document else []
    return [row["text"] for row in rows if row["kind"] == "order"]


def test_order_is_described_confirmed_once_and_on_the_record(
    shutter_console: ConsoleServer, wait_until: WaitUntil
) -> None:
    with viewer(shutter_console) as websocket:
        described = ask(websocket, "describe", tag="service:shutter")["description"]
        assert "expose" in described["commands"]
        assert described["properties"]["gain"]["value"] == 1.0
        prepared = ask(websocket, "prepare", tag="service:shutter", name="expose", value={"milliseconds": 5})
        assert prepared["text"] == "Call expose(milliseconds=5) of shutter."
        done = ask(websocket, "confirm", number=prepared["number"])
        assert done["result"] == {"opened_ms": 5}
        assert "was not prepared" in ask(websocket, "confirm", number=prepared["number"])
        prepared = ask(websocket, "prepare", tag="service:shutter", name="gain", value=2.5, property=True)
        assert ask(websocket, "confirm", number=prepared["number"])["result"] == 2.5
        expected = ["Call expose(milliseconds=5) of shutter. done", "Set gain of shutter to 2.5. done"]
        wait_until(lambda: notices(shutter_console) == expected, timeout=DEADLINE_S)


def test_property_that_is_no_number_is_shown_as_text(shutter_console: ConsoleServer) -> None:
    with viewer(shutter_console) as websocket:
        send(websocket, type="ask", id=7, what="describe", arguments={"tag": "service:shutter"})
        while '"reply"' not in (message := str(websocket.recv(timeout=DEADLINE_S))):
            pass

    # Python reads NaN in JSON; a browser would take the whole message for broken.
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    properties = json.loads(message, parse_constant=refuse)["result"]["description"]["properties"]
    assert properties["drift"]["value"] == "nan"


def test_viewer_that_only_watches_cannot_give_orders(shutter_console: ConsoleServer) -> None:
    cookie = session(shutter_console, ViewerRole.WATCH)
    with viewer(shutter_console) as steering, viewer(shutter_console, cookie) as watching:
        order = {"tag": "service:shutter", "name": "expose", "value": {"milliseconds": 5}}
        assert "only watches" in ask(watching, "prepare", **order)
        number = ask(steering, "prepare", **order)["number"]
        assert "only watches" in ask(watching, "confirm", number=number)
        with viewer(shutter_console) as another:
            assert "was not prepared" in ask(another, "confirm", number=number)
    assert notices(shutter_console) == []


def test_refused_order_is_on_the_record_too(shutter_console: ConsoleServer, wait_until: WaitUntil) -> None:
    with viewer(shutter_console) as websocket:
        prepared = ask(websocket, "prepare", tag="service:shutter", name="expose", value={"wrong": 5})
        assert "rejected" in ask(websocket, "confirm", number=prepared["number"])
        wait_until(lambda: "refused" in "".join(notices(shutter_console)), timeout=DEADLINE_S)
        for bad in (
            {"tag": "service:none", "name": "x", "value": {}},
            {"tag": "service:shutter", "name": "", "value": {}},
            {"tag": "service:shutter", "name": "gain", "value": [1], "property": True},
            {"tag": "service:shutter", "name": "expose", "value": 3},
        ):
            assert isinstance(ask(websocket, "prepare", **bad), str)


def test_text_of_an_order_is_bounded() -> None:
    for is_property, value in ((True, "x" * 60_000), (False, {"reason": "x" * 60_000})):
        text = order_text("service:driver", "stop", value, is_property)
        assert len(text) <= 500
        assert text.endswith("…")


def test_reply_for_all_viewers_is_made_once_in_a_while() -> None:
    made: list[int] = []

    def make() -> dict[str, int]:
        made.append(len(made))
        return {"number": len(made)}

    reply: SharedReply[dict[str, int]] = SharedReply()
    threads = [threading.Thread(target=reply.get, args=(make,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    patient: SharedReply[dict[str, int]] = SharedReply(max_age_s=3600)
    made.clear()
    keys = ("idle", "idle", "recording", "recording")
    assert [patient.get(make, key)["number"] for key in keys] == [1, 1, 2, 2]
    made[1:] = []
    aged: SharedReply[dict[str, int]] = SharedReply(max_age_s=-1)
    assert [aged.get(make), aged.get(make)] == [{"number": 2}, {"number": 3}]


def test_token_is_not_in_the_text_of_an_order() -> None:
    assert "secret" not in order_text("service:driver", "stop", {"token": "secret"}, False)


def test_recording_is_listed_scrubbed_and_verified(
    lab: Laboratory, tmp_path: Path, free_stream_id: int, wait_until: WaitUntil
) -> None:
    lab.produce("detector", free_stream_id, detector, 50)
    root = tmp_path / "run-1"
    with lab.context.record(root, streams=[free_stream_id]) as recorder:
        wait_until(lambda: recorder.stats().rows >= 20, timeout=DEADLINE_S)
    (tmp_path / "unrelated").mkdir()
    with console(lab, recordings=(tmp_path,)) as server, viewer(server) as websocket:
        (row,) = ask(websocket, "recordings")["recordings"]
        assert (row["root"], row["streams"]) == (str(root), [f"{free_stream_id} (detector)"])
        (stream,) = ask(websocket, "recording", root=str(root))["streams"]
        epoch = stream["epochs"][0]
        assert epoch["balanced"]
        send(
            websocket, type="ask", id=8, what="recorded-frame",
            arguments={"root": str(root), "stream": free_stream_id, "epoch": epoch["epoch"],
                       "seq": epoch["first_seq"], "view": {}},
        )  # fmt: skip
        header, payload = receive_frame(websocket)
        # On a busy machine the epoch may begin with gaps: then it is the frame behind them.
        expected = int(epoch["first_seq"])
        for _, first, count, _ in stream["gaps"]:
            expected += count if int(first) == expected else 0
        assert int(header["seq"]) == expected
        assert np.frombuffer(payload, "<u2").reshape(240, 320)[3, 5] == 54_321
        job = ask(websocket, "verify", root=str(root))["job"]
        state = ask(websocket, "job", job=job)
        while state["result"] is None and not state["error"]:
            state = ask(websocket, "job", job=job)
        assert state["result"]["ok"]
        # A browser names a recording of the list, never a path.
        for path in ("/etc", str(tmp_path / "unrelated"), f"{root}/../run-1", ""):
            assert "no such recording" in ask(websocket, "recording", root=path)
