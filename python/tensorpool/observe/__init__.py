"""A look at a live system from outside: which streams are announced, how fast they run, what is in them.

Nothing here takes part: no lease, no driver, nothing that anybody waits for.
"""

from .announces import AnnounceEar, StreamBook, StreamHeard
from .latencies import LatencyBook, LatencyEar, StreamLatency
from .lineage import Lineage, LineageBook, SeenFrame
from .png import encode_png, to_pixels
from .rates import Gauge, Intervals, Rate
from .summary import ArraySummary, summarize

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
