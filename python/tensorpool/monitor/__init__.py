"""One listener, one model of the running system, and its ledger.

Supervisor, top, metrics, ledger and the `stream` commands use `SystemMonitor`; discovery uses the readers and
`AnnouncedStream`. Monitoring takes no lease and delays no publication.
"""

from .ledger import LedgerMonitor, LedgerRow, SystemLedger, Verdict
from .lineage import Lineage, LineageTracker, TracedFrame
from .listener import (
    ALL_STREAMS,
    Observer,
    RawObserver,
    StreamKind,
    SystemListener,
    SystemMonitor,
    model_limits,
    reduced_gc,
)
from .model import SharedSnapshot, SystemModel
from .rates import FrameIntervals, Rate, RateMeter, SampledRate
from .reports import AnnounceReader
from .snapshot import Snapshot, StreamView
from .streams import AnnouncedStream, ModelLimits, StreamLabels

__all__ = [
    "ALL_STREAMS",
    "AnnounceReader",
    "AnnouncedStream",
    "FrameIntervals",
    "LedgerMonitor",
    "LedgerRow",
    "Lineage",
    "LineageTracker",
    "ModelLimits",
    "Observer",
    "Rate",
    "RateMeter",
    "RawObserver",
    "SampledRate",
    "SharedSnapshot",
    "Snapshot",
    "StreamKind",
    "StreamLabels",
    "StreamView",
    "SystemLedger",
    "SystemListener",
    "SystemModel",
    "SystemMonitor",
    "TracedFrame",
    "Verdict",
    "model_limits",
    "reduced_gc",
]
