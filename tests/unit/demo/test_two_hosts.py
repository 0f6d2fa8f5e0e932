"""The two hosts of the demo: the network between them, and the joined ledger."""

from __future__ import annotations

import copy
import os
from contextlib import ExitStack
from typing import Any

import pytest

from tensorpool.demo.checks import RecordingCheck
from tensorpool.demo.reports import CameraLedger, HostLedger, LabLedger
from tensorpool.demo.two_hosts import join_ledgers, make_network

LAB: dict[str, Any] = {
    "bridge": {
        "published": 100,
        "delivered": 97,
        "dropped": {"sender": 1, "network": 2, "receiver": 0},
        "exact": True,
        "whole": True,
    },
    "checked": 96,
    "wrong": 0,
    "viewer": {"span": 99, "received": 96, "dropped": {"gap": 2, "late": 1}, "balanced": True},
    "recorder": [{"rows": 97, "gaps": {"gap": 2}, "span": 99, "balanced": True}],
    "paths": [],
    "faults": [],
}
CAMERA = CameraLedger(committed=100, balanced=True)
HOST = HostLedger(paths=[], faults=[])


def faults(lab: dict[str, Any], host: HostLedger = HOST, **recording: Any) -> list[str]:
    ledger = LabLedger.from_json(copy.deepcopy(lab))
    check = RecordingCheck(**recording)
    return join_ledgers(CAMERA, host, ledger, check, elapsed_s=1.0, has_namespaces=False).faults


def test_ledgers_that_add_up_have_no_fault():
    assert faults(LAB) == []


@pytest.mark.parametrize("host", ["camera", "lab"])
def test_inexact_path_of_either_host_is_a_fault(host: str):
    fault = "stream 10000, recorder: 3 unaccounted"
    if host == "camera":
        assert faults(LAB, HostLedger(paths=[], faults=[fault])) == [fault]
    else:
        assert faults({**LAB, "faults": [fault]}) == [fault]


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
        (("recorder", 0, "rows"), 96, "the recorder's span"),
        (("recorder", 0, "gaps", "gap"), 1, "the recorder's span"),
        (("wrong",), 1, "wrong byte"),
    ],
)
def test_each_difference_is_a_fault(path: tuple[Any, ...], value: Any, fault: str):
    lab = copy.deepcopy(LAB)
    parent: Any = lab
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
    assert any(fault in text for text in faults(lab)), fault


@pytest.mark.parametrize(("key", "value"), [("torn", 1), ("problems", ["x"])])
def test_torn_or_damaged_recording_is_a_fault(key: str, value: Any):
    assert faults(LAB, **{key: value})


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
