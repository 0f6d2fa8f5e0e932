"""The ledger of a whole system: what became of every frame, on every path, with its reason."""

from .audit import LedgerAudit
from .book import LedgerBook
from .live import LiveLedger
from .rows import Row, Verdict

__all__ = ["LedgerAudit", "LedgerBook", "LiveLedger", "Row", "Verdict"]
