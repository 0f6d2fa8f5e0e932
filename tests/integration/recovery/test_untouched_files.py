"""Clients of a driver map its files, and never create, truncate or unlink a file."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.remote_process import TIMEOUT_S, RemoteProcess

from .deployment import ROUNDS, Deployment, Periods
from .other_user import OtherUserProcess

# Calls that create, truncate, move or remove a file, or change its owner or mode.
CALLS = (
    "open,openat,openat2,creat,truncate,ftruncate,fallocate,unlink,unlinkat,rename,renameat,renameat2,"
    "mkdir,mkdirat,rmdir,link,linkat,symlink,symlinkat,mknod,mknodat,chmod,fchmod,fchmodat,chown,fchown,"
    "fchownat"
)
HARMLESS_OPEN = re.compile(r"\bopen(at2?)?\((?!.*(O_CREAT|O_TRUNC|O_TMPFILE))")
ALICE = 54_321


@contextmanager
def traced(deployment: Deployment, process: RemoteProcess, log: Path) -> Iterator[None]:
    """Logs the file calls of a process until it has ended."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    strace_stderr = log.with_suffix(".stderr")
    with strace_stderr.open("w") as stderr:
        # -y prints the path of a descriptor.
        command = ["strace", "-f", "-y", "-e", f"trace={CALLS}", "-o", str(log), "-p", str(process.pid)]
        tracer = subprocess.Popen(command, stderr=stderr)
    try:
        deployment.until(lambda: tracer.poll() is not None or "attached" in strace_stderr.read_text())
        if tracer.poll() is not None:
            pytest.skip(f"cannot trace processes: {strace_stderr.read_text().strip()}")
        yield
        process.end()
        tracer.wait(TIMEOUT_S)
    finally:
        if tracer.poll() is None:
            tracer.terminate()
            tracer.wait(TIMEOUT_S)


def whole_calls(trace: str) -> list[str]:
    """The calls of a trace, one a line: strace cuts a call in two where another thread calls meanwhile."""
    calls, unfinished = [], dict[str, str]()
    for line in trace.splitlines():
        thread, _, call = line.partition(" ")
        if call.rstrip().endswith("<unfinished ...>"):
            unfinished[thread] = call.rstrip().removesuffix("<unfinished ...>")
        elif " resumed>" in call and thread in unfinished:
            calls.append(f"{thread} {unfinished.pop(thread)}{call.partition(' resumed>')[2]}")
        else:
            calls.append(line)
    return calls + [f"{thread} {call}" for thread, call in unfinished.items()]


def changing_calls(deployment: Deployment, log: Path) -> list[str]:
    """Calls that change a file below the base directory."""
    calls = [line for line in whole_calls(log.read_text()) if str(deployment.base) in line]
    mapped = [line for line in calls if "header.ring" in line]
    assert mapped, "the trace must contain the client's opens"
    return [line for line in calls if not HARMLESS_OPEN.search(line)]


@pytest.mark.requirement("driver-2.2-1", "driver-2.3-1", "driver-3-1", "driver-3-2")
@pytest.mark.parametrize("role", ["producer", "consumer"])
def test_traced_client_changes_no_file(deployment: Deployment, tmp_path: Path, role: str) -> None:
    """Traces attach, frames, revocations, a restart of the driver, and the end."""
    log = tmp_path / "trace"
    deployment.driver()
    service = deployment.service()
    other, client = deployment.process(), deployment.process()
    client.call("received_count")
    with traced(deployment, client, log):
        consumer = deployment.consumer(client if role == "consumer" else other)
        producer = deployment.streaming_producer(client if role == "producer" else other)
        for _ in range(ROUNDS):
            epoch = deployment.wait_epoch(consumer)
            deployment.call_driver("revoke", stream_id=deployment.stream_id)
            deployment.wait_epoch(consumer, after=epoch)
        epoch = deployment.wait_epoch(consumer)
        service.end()
        service = deployment.service()
        deployment.wait_epoch(consumer, after=epoch)
        deployment.wait_agreed(producer, [consumer])
        deployment.assert_balanced(producer, [consumer])
    assert changing_calls(deployment, log) == []


def file_states(base: Path) -> dict[str, tuple[int, int, int]]:
    """Inode, size and (of a directory) modification time of each entry."""
    states = {}
    for path in sorted(base.rglob("*")):
        stat = path.stat()
        states[str(path)] = (stat.st_ino, stat.st_size, stat.st_mtime_ns if path.is_dir() else 0)
    return states


@pytest.mark.requirement("driver-2.2-1", "driver-2.3-1")
def test_clients_change_no_file_while_the_driver_is_stopped(
    deployment: Deployment,
) -> None:
    # Long enough that neither driver nor clients time out.
    deployment.configure(Periods(keepalive=1, grace=30, announce=20))
    deployment.driver()
    service = deployment.service()
    clients = [deployment.streaming_producer(), deployment.consumer(), deployment.consumer()]
    for _ in range(ROUNDS):
        deployment.wait_epoch(*clients[1:])
        service.stop()
        before = file_states(deployment.base)
        assert len(before) >= 6
        deployment.wait_received(*clients[1:])
        # One client closes, one exits, one is killed.
        clients[0].call("close")
        clients[1].end()
        clients[2].kill()
        assert file_states(deployment.base) == before
        service.resume()
        clients = [deployment.streaming_producer(clients[0]), deployment.consumer(), deployment.consumer()]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to change the user")
@pytest.mark.requirement("driver-2.2-1", "driver-2.3-1", "driver-3-1", "driver-9-2")
def test_other_user_without_write_permission_produces_and_consumes(deployment: Deployment) -> None:
    deployment.configure(
        Periods(),
        driver=f"""
            [[driver.streams]]
            stream_id = {deployment.stream_id}
            pools = ["4KiB"]
            owner = "{ALICE}"
            """,
    )
    deployment.base.chmod(0o755)
    with tempfile.TemporaryDirectory() as state_dir:
        os.chmod(state_dir, 0o777)
        deployment.process().call("launch_for_all", aeron_dir=str(deployment.aeron_dir))
        deployment.service()
        clients = [
            deployment.start(
                OtherUserProcess, ALICE, str(deployment.config), env={"XDG_STATE_HOME": state_dir}
            )
            for _ in range(2)
        ]
        consumer, producer = deployment.consumer(clients[0]), deployment.streaming_producer(clients[1])
        for _ in range(ROUNDS):
            epoch = deployment.wait_epoch(consumer)
            (directory,) = deployment.base.glob(f"tensorpool-*/default/*/{epoch}")
            assert set(producer.call("attempt", directory=str(directory))) == {"PermissionError"}
            deployment.call_driver("revoke", stream_id=deployment.stream_id)
            deployment.wait_epoch(consumer, after=epoch)
            deployment.wait_agreed(producer, [consumer])
        deployment.assert_balanced(producer, [consumer])
        deployment.base.chmod(0o700)
        deployment.close()
