"""`tensorpool.open()`: one connection of a process, with everything that can be had through it."""

from . import scripts
from .context import Context, Event
from .opening import load_config, open
from .scripts import discover, discover_async

__all__ = ["Context", "Event", "discover", "discover_async", "load_config", "open", "scripts"]
