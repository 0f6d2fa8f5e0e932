"""`tensorpool.open()`: one connection of a process, with everything that can be had through it."""

from . import scripts
from .context import Context, Event, open

__all__ = ["Context", "Event", "open", "scripts"]
