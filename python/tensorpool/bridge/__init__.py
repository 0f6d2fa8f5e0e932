"""The bridge: publishes streams of one host in the shared memory of another, over Aeron UDP."""

from .agent import BridgeAgent
from .config import BridgeSettings, MappingSettings, ProfileSettings
from .mappings import FallbackUri

__all__ = [
    "BridgeAgent",
    "BridgeSettings",
    "FallbackUri",
    "MappingSettings",
    "ProfileSettings",
]
