"""Services on UDP: commands, replies and the record of them between two hosts, each a network namespace.

Skipped where namespaces are not permitted.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests import leaks
from tests.e2e.namespaces import PATIENCE_S, HostFactory, NamespaceHost, network

# Commands go to the host of the services; their echoes and results go to all who follow them.
CHANNELS = {
    "TENSORPOOL_SERVICE__CONTROL_CHANNEL": "aeron:udp?endpoint=10.77.1.1:40210",
    "TENSORPOOL_SERVICE__STATUS_CHANNEL": "aeron:udp?endpoint=224.20.30.41:40211|interface=10.77.1.0/24",
}

CLIENT = """
import json, sys, tensorpool as tp
with (
    tp.open("standalone") as ctx,
    ctx.record(sys.argv[1], streams=[], services=True, serve=False),
    ctx.service("driver", timeout=60) as driver,
):
    print(json.dumps({
        "pid": driver.ping().pid,
        "aeron_dir": driver.call("status")["aeron_dir"],
        "services": [identity.tag for identity in ctx.services(3.0)],
    }))
"""


@pytest.fixture
def host_factory(aeron_dir: Path, shm_base: Path, tmp_path: Path) -> Iterator[HostFactory]:
    yield HostFactory(aeron_dir, shm_base, tmp_path)
    for directory in aeron_dir.parent.glob(f"{aeron_dir.name}-*"):
        leaks.remove(directory)


def with_channels(host: NamespaceHost) -> NamespaceHost:
    return replace(host, line=replace(host.line, more={**host.line.more, **CHANNELS}))


def run(host: NamespaceHost, *command: str) -> str:
    result = subprocess.run(
        [*host.prefix, sys.executable, *command],
        env=host.line.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * PATIENCE_S,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.leaves_files("the driver is killed")
@pytest.mark.requirement("service-4-1", "service-6-1")
def test_service_is_used_and_recorded_from_another_host(
    host_factory: HostFactory, tmp_path: Path, wait_until: Callable[..., Any]
) -> None:
    with network(2) as net:
        here = with_channels(host_factory.host(net.hosts[0], ""))
        there = with_channels(host_factory.host(net.hosts[1], ""))
        ready = tmp_path / "ready"
        with here.role("driver", "--ready-file", str(ready)):
            wait_until(ready.exists, timeout=PATIENCE_S)
            root = tmp_path / "commands"
            answer = json.loads(run(there, "-c", CLIENT, str(root)))
        assert answer["aeron_dir"] == str(here.line.aeron_dir)
        assert answer["services"] == ["service:driver"]
        lines = run(there, "-m", "tensorpool", "recording", "events", str(root), "--json").splitlines()
        events = [(event["kind"], event["key"]) for event in map(json.loads, lines)]
        assert ("read", "status().read") in events
        assert ("result", "status().result") in events
