"""`tensorpool.open()` and the context that it returns, with its settings."""

from .context import Context, Event
from .endpoints import ContextOptions
from .startup import discover, discover_async, load_config, open

__all__ = ["Context", "ContextOptions", "Event", "discover", "discover_async", "load_config", "open"]
