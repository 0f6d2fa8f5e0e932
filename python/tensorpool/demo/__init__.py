"""The demonstration: real processes, real shared memory, and a ledger that adds up."""

from .director import run

__all__ = ["run"]
