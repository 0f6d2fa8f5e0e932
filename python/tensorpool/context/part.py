"""What the parts of a context have in common."""

from __future__ import annotations

from abc import abstractmethod

from .. import _native


class ContextPart:
    """A mixin of `Context`."""

    _conductor: _native.Conductor

    @abstractmethod
    def _check_open(self) -> None:
        """Raises ClosedError if the context is closed."""
