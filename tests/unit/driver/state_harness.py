"""A driver's state machine in a harness with a manual clock, fake files and fake announces."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from tensorpool.driver.actions import (
    Action,
    Announce,
    AssignFiles,
    FilesFailed,
    FilesReady,
    FilesRemoved,
    MakeFiles,
    RemoveFiles,
    SaveProvisions,
    Send,
    Stop,
    Withdraw,
)
from tensorpool.driver.config import DriverSettings
from tensorpool.driver.leases import Refusal
from tensorpool.driver.plan import StreamLayout
from tensorpool.driver.state import DriverState
from tensorpool.driver.storage import BaseDirs
from tensorpool.sbe import (
    LeaseRevokeReason,
    Message,
    PublishMode,
    ResponseCode,
    Role,
    ShmAttachRequest,
    ShmAttachResponse,
    ShmAttachResponseR2,
    ShmDetachRequest,
    ShmLeaseKeepalive,
    ShmLeaseRevoked,
)
from tensorpool.shm import EpochFiles
from tensorpool.shm.epoch_files import PoolFile

S = 1_000_000_000
KIB = 1024
FileJob = MakeFiles | AssignFiles | RemoveFiles


def layout(nslots: int = 8, *strides: int) -> StreamLayout:
    return StreamLayout(nslots, strides or (64 * KIB, 1024 * KIB, 4096 * KIB))


class StateHarness:
    """A driver's state machine with its agent's actions in memory, one step at a time."""

    def __init__(
        self,
        *,
        has_hugepages: bool = False,
        bases: BaseDirs | None = None,
        numa_nodes: frozenset[int] = frozenset({0}),
        first_lease_id: int = 1,
        **settings: Any,
    ) -> None:
        base = Path("/base")
        self.state = DriverState(
            DriverSettings(**settings),
            bases=bases or BaseDirs(base, on_hugepages=frozenset({base} if has_hugepages else ())),
            numa_nodes=numa_nodes,
            first_lease_id=first_lease_id,
        )
        self.now = 100 * S
        self.sent: list[Any] = []
        self.jobs: list[FileJob] = []
        self.done: list[FileJob] = []
        self.announced: dict[int, tuple[int, int]] = {}
        self.history: list[tuple[int, int, int]] = []
        """(stream, epoch, producer) of every announce."""
        self.directories: dict[int, set[Path]] = {}
        self.marks: dict[int, int] = {}
        self.stops: list[Stop] = []
        self.saves = 0
        self.announce_failure: str | None = None
        self.refuse_files: Refusal | None = None
        self._correlation = 0

    # --- actions

    def perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Send(message):
                    # Every message must be encodable.
                    assert message.encode()
                    self.sent.append(message)
                case MakeFiles() | AssignFiles() | RemoveFiles():
                    self.jobs.append(action)
                case Announce(stream_id, files, producer_id):
                    if self.announce_failure is None:
                        assert files.directory in self.directories[stream_id]
                        self.announced[stream_id] = (files.epoch, producer_id)
                        self.history.append((stream_id, files.epoch, producer_id))
                    self.perform(self.state.on_announced(stream_id, self.announce_failure, self.now))
                case Withdraw(stream_id):
                    self.announced.pop(stream_id, None)
                case SaveProvisions():
                    self.saves += 1
                case Stop():
                    self.stops.append(action)

    def work(self, count: int = 1000) -> None:
        """Runs up to `count` file jobs, including those that are added meanwhile."""
        for _ in range(count):
            if not self.jobs:
                return
            job = self.jobs.pop(0)
            self.done.append(job)
            self.perform(self.state.on_files(self.result(job), self.now))

    def result(self, job: FileJob) -> FilesReady | FilesFailed | FilesRemoved:
        if isinstance(job, RemoveFiles):
            self.directories[job.stream_id].remove(job.directory)
            return FilesRemoved(job.stream_id, job.directory)
        stream_id = job.plan.stream_id
        directories = self.directories.setdefault(stream_id, set())
        if isinstance(job, AssignFiles):
            directories.remove(job.files.directory)
        if self.refuse_files is not None:
            return FilesFailed(stream_id, self.refuse_files)
        epoch = self.marks[stream_id] = self.marks.get(stream_id, 0) + 1
        stream_layout = (
            StreamLayout.from_files(job.files) if isinstance(job, AssignFiles) else job.plan.layout
        )
        files = fake_files(stream_id, epoch, stream_layout)
        directories.add(files.directory)
        return FilesReady(stream_id, files)

    # --- events

    def send(self, message: Message | bytes) -> None:
        data = message if isinstance(message, bytes) else message.encode()
        self.perform(self.state.on_message(data, self.now))

    def tick(self, seconds: float = 0.0, *, drained: bool = True) -> None:
        self.now += round(seconds * S)
        self.perform(self.state.on_tick(self.now, read_until_ns=self.now if drained else None))

    def request_attach(
        self,
        stream_id: int,
        client_id: int,
        role: Role = Role.CONSUMER,
        *,
        mode: PublishMode | None = PublishMode.EXISTING_OR_CREATE,
        **rest: Any,
    ) -> int:
        """Sends an attach request. Returns its correlation id."""
        self._correlation += 1
        correlation = client_id << 32 | self._correlation
        correlation -= (1 << 64) if correlation >= 1 << 63 else 0
        request = ShmAttachRequest(
            correlation_id=correlation,
            stream_id=stream_id,
            client_id=client_id,
            role=role,
            publish_mode=mode,
            **rest,
        )
        self.send(request)
        return correlation

    def attach(self, stream_id: int, client_id: int, role: Role = Role.CONSUMER, **rest: Any) -> Any:
        """Sends an attach request and runs all file work. Returns the response."""
        correlation = self.request_attach(stream_id, client_id, role, **rest)
        self.work()
        response = self.response(correlation)
        assert isinstance(response, ShmAttachResponse)
        return response

    def producer(self, stream_id: int, client_id: int, **rest: Any) -> Any:
        response = self.attach(stream_id, client_id, Role.PRODUCER, **rest)
        assert response.code is ResponseCode.OK, response.error_message
        return response

    def detach(self, granted: ShmAttachResponse, client_id: int, role: Role, correlation: int = 7) -> None:
        assert granted.lease_id is not None
        assert granted.stream_id is not None
        self.send(
            ShmDetachRequest(
                correlation_id=correlation,
                lease_id=granted.lease_id,
                stream_id=granted.stream_id,
                client_id=client_id,
                role=role,
            )
        )

    def keep_alive(self, granted: ShmAttachResponse, client_id: int, role: Role, **wrong: Any) -> None:
        fields: dict[str, Any] = {
            "lease_id": granted.lease_id,
            "stream_id": granted.stream_id,
            "client_id": client_id,
            "role": role,
            "client_timestamp_ns": self.now,
        }
        self.send(ShmLeaseKeepalive(**(fields | wrong)))

    # --- sent messages

    def response(self, correlation_id: int) -> Any:
        """The only response to a request."""
        matching = [
            message for message in self.sent if getattr(message, "correlation_id", None) == correlation_id
        ]
        assert len(matching) == 1, matching
        return matching[0]

    def refusal(self, correlation_id: int) -> tuple[ResponseCode, str]:
        response = self.response(correlation_id)
        assert isinstance(response, ShmAttachResponse | ShmAttachResponseR2)
        return response.code, response.error_message

    def notices(self) -> list[tuple[int, LeaseRevokeReason]]:
        return [
            (notice.lease_id, notice.reason) for notice in self.sent if isinstance(notice, ShmLeaseRevoked)
        ]


def fake_files(stream_id: int, epoch: int, shape: StreamLayout) -> EpochFiles:
    directory = Path(f"/base/tensorpool-user/default/{stream_id}/{epoch}")
    pools = [
        PoolFile(pool_id, stride, f"shm:file?path={directory}/{pool_id}.pool")
        for pool_id, stride in shape.pools
    ]
    return EpochFiles(directory, epoch, shape.nslots, f"shm:file?path={directory}/header.ring", pools)


def with_header(message: bytes, **changes: int) -> bytes:
    """The same message with other numbers in its header."""
    names = ("block_length", "template_id", "schema_id", "version")
    header = dict(zip(names, struct.unpack_from("<HHHH", message), strict=True)) | changes
    return struct.pack("<HHHH", *header.values()) + message[8:]
