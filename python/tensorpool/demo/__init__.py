"""`tensorpool demo`: real processes, real shared memory, and a ledger that adds up."""

from .run import run

__all__ = ["run"]
