"""The recorder: live streams into a recording, every sequence accounted for."""

from .api import record

__all__ = ["record"]
