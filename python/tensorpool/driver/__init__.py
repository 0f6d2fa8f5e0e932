"""The SHM driver: one owner of the memory, leases, epochs, recovery."""

from .agent import DriverAgent
from .config import DEFAULT_NSLOTS, DriverSettings, StreamSettings
from .embedded import EmbeddedDriver
from .leases import LeaseState
from .lock import Holder, place_of, read_holder
from .presence import other_driver, place_on

__all__ = [
    "DEFAULT_NSLOTS",
    "DriverAgent",
    "DriverSettings",
    "EmbeddedDriver",
    "Holder",
    "LeaseState",
    "StreamSettings",
    "other_driver",
    "place_of",
    "place_on",
    "read_holder",
]
