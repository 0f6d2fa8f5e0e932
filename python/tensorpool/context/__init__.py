"""`tensorpool.open()`: one connection of a process, with everything that can be had through it."""

from .context import Context, Event
from .startup import discover, discover_async, load_config, open

__all__ = ["Context", "Event", "discover", "discover_async", "load_config", "open"]
