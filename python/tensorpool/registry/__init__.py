"""A registry: the streams of many drivers, found in one place."""

from .agent import RegistryAgent
from .config import DriverSource, RegistrySettings

__all__ = ["DriverSource", "RegistryAgent", "RegistrySettings"]
