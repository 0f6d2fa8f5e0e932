"""Clients on a driver map what they are given. They never create, truncate or unlink."""

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

# Whatever makes, shortens, moves or removes a file, or changes whose it is.
CALLS = (
    "open,openat,openat2,creat,truncate,ftruncate,fallocate,unlink,unlinkat,rename,renameat,renameat2,"
    "mkdir,mkdirat,rmdir,link,linkat,symlink,symlinkat,mknod,mknodat,chmod,fchmod,fchmodat,chown,fchown,"
    "fchownat"
)
HARMLESS_OPEN = re.compile(r"\bopen(at2?)?\((?!.*(O_CREAT|O_TRUNC|O_TMPFILE))")
ALICE = 54_321


@contextmanager
def traced(fleet: Deployment, process: RemoteProcess, log: Path) -> Iterator[None]:
    """Every file call of the process, until it has ended."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    said = log.with_suffix(".stderr")
    with said.open("w") as stderr:
        # With -y a descriptor is shown with its path.
        command = ["strace", "-f", "-y", "-e", f"trace={CALLS}", "-o", str(log), "-p", str(process.pid)]
        tracer = subprocess.Popen(command, stderr=stderr)
    try:
        fleet.until(lambda: tracer.poll() is not None or "attached" in said.read_text())
        if tracer.poll() is not None:
            pytest.skip(f"processes cannot be traced here: {said.read_text().strip()}")
        yield
        process.end()
        tracer.wait(TIMEOUT_S)
    finally:
        if tracer.poll() is None:
            tracer.terminate()
            tracer.wait(TIMEOUT_S)


def touches(fleet: Deployment, log: Path) -> list[str]:
    """The calls that change something below the base directory."""
    calls = [line for line in log.read_text().splitlines() if str(fleet.base) in line]
    mapped = [line for line in calls if "header.ring" in line]
    assert mapped, "the trace shows what the client opens"
    return [line for line in calls if not HARMLESS_OPEN.search(line)]


@pytest.mark.requirement("driver-2.2-1", "driver-2.3-1", "driver-3-1", "driver-3-2")
@pytest.mark.parametrize("role", ["producer", "consumer"])
def test_a_traced_client_changes_no_file(fleet: Deployment, tmp_path: Path, role: str) -> None:
    """Through attach, frames, revocations, a restart of the driver, and the end."""
    log = tmp_path / "trace"
    fleet.driver()
    service = fleet.service()
    other, watched = fleet.process(), fleet.process()
    watched.call("received_count")
    with traced(fleet, watched, log):
        consumer = fleet.consumer(watched if role == "consumer" else other)
        producer = fleet.streaming(watched if role == "producer" else other)
        for _ in range(ROUNDS):
            epoch = fleet.flow(consumer)
            fleet.ask("revoke", stream_id=fleet.stream_id)
            fleet.flow(consumer, after=epoch)
        epoch = fleet.flow(consumer)
        service.end()
        service = fleet.service()
        fleet.flow(consumer, after=epoch)
        fleet.agreed(producer, [consumer])
        fleet.accounts(producer, [consumer])
    assert touches(fleet, log) == []


def everything(base: Path) -> dict[str, tuple[int, int, int]]:
    """Each entry with what changes when it is replaced, resized, or when something in it comes or goes."""
    found = {}
    for path in sorted(base.rglob("*")):
        stat = path.stat()
        found[str(path)] = (stat.st_ino, stat.st_size, stat.st_mtime_ns if path.is_dir() else 0)
    return found


@pytest.mark.requirement("driver-2.2-1", "driver-2.3-1")
def test_clients_that_work_and_end_while_the_driver_stands_still_change_no_file(fleet: Deployment) -> None:
    # Long enough for nobody to give the driver up, nor it them.
    fleet.configure(Periods(keepalive=1, grace=30, announce=20))
    fleet.driver()
    service = fleet.service()
    clients = [fleet.streaming(), fleet.consumer(), fleet.consumer()]
    for _ in range(ROUNDS):
        fleet.flow(*clients[1:])
        service.stop()
        before = everything(fleet.base)
        assert len(before) >= 6
        fleet.receives(*clients[1:])
        # One closes, one ends, one is killed.
        clients[0].call("close")
        clients[1].end()
        clients[2].kill()
        assert everything(fleet.base) == before
        service.resume()
        clients = [fleet.streaming(clients[0]), fleet.consumer(), fleet.consumer()]


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root to be somebody else")
@pytest.mark.requirement("driver-2.2-1", "driver-2.3-1", "driver-3-1", "driver-9-2")
def test_another_user_who_may_change_nothing_produces_and_consumes(fleet: Deployment) -> None:
    fleet.configure(
        Periods(),
        driver=f"""
            [[driver.streams]]
            stream_id = {fleet.stream_id}
            pools = ["4KiB"]
            owner = "{ALICE}"
            """,
    )
    fleet.base.chmod(0o755)
    with tempfile.TemporaryDirectory() as home:
        os.chmod(home, 0o777)
        fleet.process().call("launch_for_all", aeron_dir=str(fleet.aeron_dir))
        fleet.service()
        visitors = [
            fleet.start(OtherUserProcess, ALICE, str(fleet.config), env={"XDG_STATE_HOME": home})
            for _ in range(2)
        ]
        consumer, producer = fleet.consumer(visitors[0]), fleet.streaming(visitors[1])
        for _ in range(ROUNDS):
            epoch = fleet.flow(consumer)
            (directory,) = fleet.base.glob(f"tensorpool-*/default/*/{epoch}")
            assert set(producer.call("attempt", directory=str(directory))) == {"PermissionError"}
            fleet.ask("revoke", stream_id=fleet.stream_id)
            fleet.flow(consumer, after=epoch)
            fleet.agreed(producer, [consumer])
        fleet.accounts(producer, [consumer])
        fleet.base.chmod(0o700)
        fleet.close()
