"""The SHM driver: owner of a namespace's regions; leases, epochs and recovery (driver §2 to §14)."""

from .agent import DriverAgent
from .config import DEFAULT_NSLOTS, DriverSettings, StreamSettings
from .embedded import EmbeddedDriver
from .leases import LeaseState
from .lock import Holder, HolderWatch, namespace_on, other_driver, qualified_namespace, read_holder

__all__ = [
    "DEFAULT_NSLOTS",
    "DriverAgent",
    "DriverSettings",
    "EmbeddedDriver",
    "Holder",
    "HolderWatch",
    "LeaseState",
    "StreamSettings",
    "namespace_on",
    "other_driver",
    "qualified_namespace",
    "read_holder",
]
