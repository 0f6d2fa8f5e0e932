"""Finding streams: an index of what is announced, those who answer for it, and those who ask.

What is found is a hint. Attaching goes through the stream's driver, and nowhere else.
"""

from .answers import Filter
from .asking import make_filter
from .client import DiscoveryClient, Route, routes
from .config import DiscoverySettings, ProviderSettings, VisibilityRule
from .counters import DiscoveryCounters
from .entries import DriverIdentity, Entry, Words
from .found import StreamFound, put_together
from .index import DiscoveryIndex
from .intake import Intake, stream_of
from .provider import DiscoveryProvider

__all__ = [
    "DiscoveryClient",
    "DiscoveryCounters",
    "DiscoveryIndex",
    "DiscoveryProvider",
    "DiscoverySettings",
    "DriverIdentity",
    "Entry",
    "Filter",
    "Intake",
    "ProviderSettings",
    "Route",
    "StreamFound",
    "VisibilityRule",
    "Words",
    "make_filter",
    "put_together",
    "routes",
    "stream_of",
]
