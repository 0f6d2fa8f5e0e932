"""The two hosts of the demo: the network between them, and the joined ledger."""

from __future__ import annotations

import copy
import os
from contextlib import ExitStack
from typing import Any

import pytest

from tensorpool.demo.two_hosts import _faults, make_network

LAB: dict[str, Any] = {
    "bridge": {
        "published": 100,
        "delivered": 97,
        "dropped": {"sender": 1, "network": 2, "receiver": 0},
        "exact": True,
    },
    "seen": 96,
    "wrong": 0,
    "viewer": {"span": 99, "received": 96, "dropped": {"gap": 2, "late": 1}, "balanced": True},
    "recorder": [{"rows": 97, "gaps": {"gap": 2}, "span": 99, "balanced": True}],
    "faults": [],
}
CAMERA: dict[str, Any] = {"committed": 100, "balanced": True, "faults": []}
RECORDED = {"rows": 97, "missing": 2, "torn": 0, "problems": []}


def test_books_that_add_up_have_no_fault():
    assert _faults(CAMERA, LAB, RECORDED) == []


@pytest.mark.parametrize("host", ["camera", "lab"])
def test_a_path_of_either_host_that_is_not_exact_is_a_fault(host: str):
    camera, lab = copy.deepcopy(CAMERA), copy.deepcopy(LAB)
    {"camera": camera, "lab": lab}[host]["faults"].append("stream 10000, recorder: 3 unaccounted")
    assert _faults(camera, lab, RECORDED) == ["stream 10000, recorder: 3 unaccounted"]


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        (("bridge", "exact"), False, "not exact"),
        (("bridge", "published"), 99, "has not heard of"),
        (("bridge", "delivered"), 98, "published is not"),
        (("bridge", "dropped", "network"), 3, "published is not"),
        (("viewer", "balanced"), False, "the viewer's ledger"),
        (("viewer", "received"), 95, "the viewer's ledger"),
        (("viewer", "span"), 100, "neither seen nor dropped"),
        (("recorder", 0, "balanced"), False, "the recorder's ledger"),
        (("wrong",), 1, "wrong byte"),
    ],
)
def test_each_thing_that_does_not_add_up_is_named(path: tuple[Any, ...], value: Any, fault: str):
    lab = copy.deepcopy(LAB)
    at: Any = lab
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    assert any(fault in one for one in _faults(CAMERA, lab, RECORDED)), fault


@pytest.mark.parametrize(("key", "value"), [("rows", 96), ("missing", 1), ("torn", 1), ("problems", ["x"])])
def test_a_recording_that_lacks_or_breaks_frames_is_a_fault(key: str, value: Any):
    assert _faults(CAMERA, LAB, {**RECORDED, key: value})


def test_who_may_make_no_namespaces_has_loopback(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with ExitStack() as stack:
        wire = make_network(stack)
    assert wire.prefixes == ((), ())
    assert len(set(wire.channels.values())) == 3
    assert all(one.startswith("aeron:udp?endpoint=127.0.0.1:") for one in wire.channels.values())


def test_where_they_cannot_be_made_nothing_of_them_stays(monkeypatch: pytest.MonkeyPatch):
    done: list[tuple[str, ...]] = []

    def ip(*words: str) -> None:
        if words[0] == "link":
            raise OSError("not permitted")
        done.append(words)

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("tensorpool.demo.two_hosts._ip", ip)
    monkeypatch.setattr("shutil.which", lambda _: "/sbin/ip")
    with ExitStack() as stack:
        assert make_network(stack).prefixes == ((), ())
        added = [one[2] for one in done if one[1] == "add"]
        removed = [one[2] for one in done if one[1] == "del"]
        assert len(added) == 2
        assert sorted(added) == sorted(removed), "at once, not at the end"
