"""The registry: one discovery provider for the streams of many drivers."""

from .agent import RegistryAgent
from .config import DriverSource, RegistrySettings

__all__ = ["DriverSource", "RegistryAgent", "RegistrySettings"]
