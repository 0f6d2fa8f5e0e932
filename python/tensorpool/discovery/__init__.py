"""Finding streams: an index of what is announced, those who answer for it, and those who ask.

What is found is a hint. Attaching goes through the stream's driver, and nowhere else.
"""

from .client import DiscoveryClient, Route, routes
from .config import DiscoverySettings, ProviderSettings, VisibilityRule
from .index import DiscoveryIndex, DriverIdentity, Entry, StreamLabels
from .intake import AnnounceReader, stream_of
from .provider import DiscoveryProvider
from .query import DiscoveredStream, make_filter, merge_results
from .state import DiscoveryCounters, Filter

__all__ = [
    "AnnounceReader",
    "DiscoveredStream",
    "DiscoveryClient",
    "DiscoveryCounters",
    "DiscoveryIndex",
    "DiscoveryProvider",
    "DiscoverySettings",
    "DriverIdentity",
    "Entry",
    "Filter",
    "ProviderSettings",
    "Route",
    "StreamLabels",
    "VisibilityRule",
    "make_filter",
    "merge_results",
    "routes",
    "stream_of",
]
