"""The ledger of a whole system: what became of every frame, on every path, with its reason.

A look at a live system from outside: which streams are announced, how fast they run, what is in them.

Nothing here takes part: no lease, no driver, nothing that anybody waits for.
"""

from ..preview import ArraySummary, encode_png, summarize, to_pixels
from .announces import AnnounceEar, StreamBook, StreamHeard
from .latencies import LatencyBook, LatencyEar, StreamLatency
from .ledger import LedgerMonitor, LedgerRow, LiveLedger, SystemLedger, Verdict
from .lineage import Lineage, LineageTracker, TracedFrame
from .rates import Intervals, Rate, SampledRate

__all__ = [
    "AnnounceEar",
    "ArraySummary",
    "Intervals",
    "LatencyBook",
    "LatencyEar",
    "LedgerMonitor",
    "LedgerRow",
    "Lineage",
    "LineageTracker",
    "LiveLedger",
    "Rate",
    "SampledRate",
    "StreamBook",
    "StreamHeard",
    "StreamLatency",
    "SystemLedger",
    "TracedFrame",
    "Verdict",
    "encode_png",
    "summarize",
    "to_pixels",
]
