"""`tensorpool.open()`: one connection of a process, with everything that can be had through it."""

from . import scripts
from .context import Context, Event
from .opening import load_config, open

__all__ = ["Context", "Event", "load_config", "open", "scripts"]
