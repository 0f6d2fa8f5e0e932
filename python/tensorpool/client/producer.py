"""A producer of tensors on one stream."""

from __future__ import annotations

import time
from contextlib import suppress
from types import TracebackType
from typing import Self

from ..errors import ForkedError
from .ledger import ProducerLedger
from .metadata import DescribedProducer


class Producer(DescribedProducer):
    """Writes tensors into the ring of a stream and tells consumers of each.

    `offer` copies; `claim` gives a slot to write into. Neither ever waits for a consumer: the value that
    comes back says what became of the frame. `set_metadata` and `set_blob` say what frames are. Safe to use
    from several threads.
    """

    _context: object = None

    def ledger(self) -> ProducerLedger:
        """Every committed frame: published, or not and why."""
        return ProducerLedger.of(self.counters())

    @property
    def attached(self) -> bool:
        """Whether there is memory to write into. On a driver it may be away for a while, and comes back."""
        return self.epoch is not None

    def wait_for_consumer(self, timeout: float = 10.0) -> bool:
        """Waits until somebody subscribes. False if nobody did in time."""
        deadline = time.monotonic() + timeout
        while not self.is_connected:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.002)
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # In a forked child the block belongs to the parent: there is nothing to close.
        with suppress(ForkedError):
            self.close()

    def __del__(self) -> None:
        # Forgotten without a close: the conductor would keep it, and its memory, as long as the context.
        with suppress(ForkedError):
            self.close()
