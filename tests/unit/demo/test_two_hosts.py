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
    "checked": 96,
    "wrong": 0,
    "viewer": {"span": 99, "received": 96, "dropped": {"gap": 2, "late": 1}, "balanced": True},
    "recorder": [{"rows": 97, "gaps": {"gap": 2}, "span": 99, "balanced": True}],
    "faults": [],
}
CAMERA: dict[str, Any] = {"committed": 100, "balanced": True, "faults": []}
RECORDED = {"rows": 97, "missing": 2, "torn": 0, "problems": []}


def test_ledgers_that_add_up_have_no_fault():
    assert _faults(CAMERA, LAB, RECORDED) == []


@pytest.mark.parametrize("host", ["camera", "lab"])
def test_inexact_path_of_either_host_is_a_fault(host: str):
    camera, lab = copy.deepcopy(CAMERA), copy.deepcopy(LAB)
    {"camera": camera, "lab": lab}[host]["faults"].append("stream 10000, recorder: 3 unaccounted")
    assert _faults(camera, lab, RECORDED) == ["stream 10000, recorder: 3 unaccounted"]


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        (("bridge", "exact"), False, "not exact"),
        (("bridge", "published"), 99, "does not know"),
        (("bridge", "delivered"), 98, "published is not"),
        (("bridge", "dropped", "network"), 3, "published is not"),
        (("viewer", "balanced"), False, "the viewer's ledger"),
        (("viewer", "received"), 95, "the viewer's ledger"),
        (("viewer", "span"), 100, "neither received nor dropped"),
        (("recorder", 0, "balanced"), False, "the recorder's ledger"),
        (("wrong",), 1, "wrong byte"),
    ],
)
def test_each_difference_is_a_fault(path: tuple[Any, ...], value: Any, fault: str):
    lab = copy.deepcopy(LAB)
    parent: Any = lab
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
    assert any(fault in text for text in _faults(CAMERA, lab, RECORDED)), fault


@pytest.mark.parametrize(("key", "value"), [("rows", 96), ("missing", 1), ("torn", 1), ("problems", ["x"])])
def test_incomplete_or_torn_recording_is_a_fault(key: str, value: Any):
    assert _faults(CAMERA, LAB, {**RECORDED, key: value})


def test_network_without_privileges_is_loopback(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with ExitStack() as stack:
        network = make_network(stack)
    assert network.prefixes == ((), ())
    assert len(set(network.channels.values())) == 3
    assert all(channel.startswith("aeron:udp?endpoint=127.0.0.1:") for channel in network.channels.values())


def test_failed_namespaces_are_removed_at_once(monkeypatch: pytest.MonkeyPatch):
    done: list[tuple[str, ...]] = []

    def ip(*arguments: str) -> None:
        if arguments[0] == "link":
            raise OSError("not permitted")
        done.append(arguments)

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("tensorpool.demo.two_hosts._ip", ip)
    monkeypatch.setattr("shutil.which", lambda _: "/sbin/ip")
    with ExitStack() as stack:
        assert make_network(stack).prefixes == ((), ())
        added = [arguments[2] for arguments in done if arguments[1] == "add"]
        removed = [arguments[2] for arguments in done if arguments[1] == "del"]
        assert len(added) == 2
        assert sorted(added) == sorted(removed), "removed at once, not at the end"
