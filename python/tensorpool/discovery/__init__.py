"""Finding streams: the client, its query and its results. The index and its providers are in submodules.

A result is a hint and no permission: only the stream's driver attaches clients.
"""

from .client import DiscoveryClient, Route, routes
from .client_query import DiscoveredStream, Filter, make_filter, merge_results
from .config import DiscoverySettings, ProviderSettings, VisibilityRule

__all__ = [
    "DiscoveredStream",
    "DiscoveryClient",
    "DiscoverySettings",
    "Filter",
    "ProviderSettings",
    "Route",
    "VisibilityRule",
    "make_filter",
    "merge_results",
    "routes",
]
