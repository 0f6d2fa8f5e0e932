"""The ledger of a whole system: what became of every frame, on every path, with its reason."""

from .book import LedgerBook
from .live import LiveLedger
from .rows import Row, Verdict

__all__ = ["LedgerBook", "LiveLedger", "Row", "Verdict"]
