"""The reports of the demo's processes: dataclasses that travel as JSON lines on stdout.

A report is known by its class and, where a process sends several of a class, by its key: the epoch or the
lease that it is about. Ids are text, because JSON numbers are exact up to 2**53 only. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Self

from ..bridge.service import JoinedLedgerReply
from ..monitor.ledger import LedgerRowJson


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessReport:
    """A report of a process."""

    kinds: ClassVar[dict[str, type[ProcessReport]]] = {}

    key: str = ""
    at_ns: int = 0
    """When it was sent, on the monotonic clock, which all processes of a machine share."""

    def __init_subclass__(cls) -> None:
        ProcessReport.kinds[cls.__name__] = cls

    def to_line(self) -> str:
        """The report as a line of JSON."""
        return json.dumps({"kind": type(self).__name__, **asdict(self)}) + "\n"

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """The report with the members of a decoded line, which `to_line` of this class has written."""
        return cls(**document)


def parse_line(line: str) -> ProcessReport:
    """The report of a line. Raises ValueError for half a line, which a killed process leaves."""
    document = json.loads(line)
    return ProcessReport.kinds[document.pop("kind")].from_json(document)


# --- readiness


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready(ProcessReport):
    """The process can begin."""

    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverReady(Ready):
    """The driver runs. `lease_s`: how long a lease lasts without keepalives."""

    lease_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CameraReady(Ready):
    """The camera has a lease and an epoch."""

    lease: str | None
    epoch: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderReady(Ready):
    """The recorder runs, after it has recovered these segments."""

    recovered: list[str]


# --- events


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapped(ProcessReport):
    """A consumer has mapped the epoch that is the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmapped(ProcessReport):
    """A consumer has unmapped the epoch that is the key."""

    unmapped_ns: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstFrame(ProcessReport):
    """A viewer has received a frame of the epoch that is the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoked(ProcessReport):
    """The driver has revoked the lease that is the key."""

    revoked_ns: int
    reason: str
    message: str


# --- samples, several a second


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSample(ProcessReport):
    """Counts of a camera, a viewer or a recorder."""

    frames: int = 0
    bytes: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    latency_us: float | None = None
    torn: int = 0
    lease: str | None = None
    epoch: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverSample(ProcessReport):
    """What the driver manages."""

    leases: int
    bytes: int
    epoch: str | None
    directory: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LabSample(ProcessReport):
    """Counts on the second of two hosts."""

    frames: int
    rows: int
    ledger: JoinedLedgerReply | None


# --- ledgers, at the end


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalReport(ProcessReport):
    """The last report of a process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CameraLedger(FinalReport):
    """The ledger of a camera."""

    committed: int
    balanced: bool
    published: int | None = None
    unpublished: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ViewerLedger:
    """The ledger of one viewer for one epoch."""

    received: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    torn: int = 0
    balanced: bool = True
    span: int = 0

    @property
    def accounted(self) -> int:
        """Frames that the viewer received or dropped."""
        return self.received + sum(self.dropped.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewerReport(FinalReport):
    """The ledgers of a viewer by epoch."""

    epochs: dict[str, ViewerLedger]

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """As `ProcessReport.from_json`."""
        epochs = {epoch: ViewerLedger(**ledger) for epoch, ledger in document["epochs"].items()}
        return cls(**{**document, "epochs": epochs})


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderBalance(FinalReport):
    """Whether the ledgers of the recorder balance."""

    balanced: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayLedger(FinalReport):
    """The frames that were replayed."""

    frames: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLedger(ProcessReport):
    """The ledger of every path on one of two hosts."""

    paths: list[LedgerRowJson]
    """Rows as `tensorpool ledger --json` prints them."""
    faults: list[str]


@dataclass(frozen=True, slots=True)
class RecordedSpan:
    """The ledger of an epoch at the recorder."""

    rows: int
    gaps: dict[str, int]
    span: int
    balanced: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LabLedger(FinalReport):
    """The ledgers on the second of two hosts."""

    bridge: JoinedLedgerReply
    checked: int
    wrong: int
    viewer: ViewerLedger
    recorder: list[RecordedSpan]
    paths: list[LedgerRowJson]
    faults: list[str]

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """As `ProcessReport.from_json`."""
        viewer = ViewerLedger(**document["viewer"])
        recorder = [RecordedSpan(**recorded) for recorded in document["recorder"]]
        return cls(**{**document, "viewer": viewer, "recorder": recorder})
