"""What a context has to do with history: its streams are recorded, and recordings are played into it.

Recorder and replayer stand above the context and bring Arrow along: they are imported when asked for.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from .part import ContextPart

if TYPE_CHECKING:
    from ..recorder.recorder import Recorder
    from ..replayer import Replay
    from .context import Context


class WithHistory(ContextPart):
    """The part of a context that records and replays."""

    def record(
        self, root: str | os.PathLike[str], *, streams: Sequence[int] | None = None, **options: Any
    ) -> Recorder:
        """Records streams into the directory `root` until closed; None: all that are announced.

        Options are those of `tensorpool.record`.
        """
        from ..recorder import record

        return record(root, streams=streams, context=self._home(), **options)

    def replay(self, root: str | os.PathLike[str], **options: Any) -> Replay:
        """Plays a recording through this context: see `tensorpool.replay`."""
        from ..replayer import replay

        return replay(root, context=self._home(), **options)

    def _home(self) -> Context:
        """This context, if it is open and of this process."""
        self._check_open()
        # Raises in a forked child, where nothing runs.
        self._conductor.status()
        return cast("Context", self)
