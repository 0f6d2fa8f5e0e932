"""A look at a live system from outside: which streams are announced, how fast they run, what is in them.

Nothing here takes part: no lease, no driver, nothing that anybody waits for.
"""

from ..preview import ArraySummary, encode_png, summarize, to_pixels
from .announces import AnnounceEar, StreamBook, StreamHeard
from .latencies import LatencyBook, LatencyEar, StreamLatency
from .lineage import Lineage, LineageBook, SeenFrame
from .rates import Gauge, Intervals, Rate

__all__ = [
    "AnnounceEar",
    "ArraySummary",
    "Gauge",
    "Intervals",
    "LatencyBook",
    "LatencyEar",
    "Lineage",
    "LineageBook",
    "Rate",
    "SeenFrame",
    "StreamBook",
    "StreamHeard",
    "StreamLatency",
    "encode_png",
    "summarize",
    "to_pixels",
]
