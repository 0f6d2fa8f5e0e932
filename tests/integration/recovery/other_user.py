"""A client that belongs to another user than the driver."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tensorpool.context import load_config
from tensorpool.service import Event

from .client_process import ClientProcess


class OtherUserProcess(ClientProcess):
    """Starts as root, reads its configuration, and has no right of root's from then on."""

    def __init__(self, uid: int, config: str) -> None:
        super().__init__()
        self.config = load_config(config)
        # What is imported late is imported now: the interpreter's own files may be root's alone.
        Event("service:any", "key", 1).encode()
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)

    def open(self, **options: Any) -> bool:
        return super().open(**{**options, "config": self.config})

    def attempt(self, directory: str) -> list[str]:
        """Creating, truncating and unlinking as a client must not; what came of each."""
        path = Path(directory)
        attempts = (
            (path / "9.pool").touch,
            (path / "header.ring").unlink,
            lambda: (path / "header.ring").rename(path / "other.ring"),
            lambda: path.rename(path.with_name("1")),
            lambda: path.with_name("2").mkdir(),
        )
        results = []
        for one in attempts:
            try:
                one()
                results.append("worked")
            except OSError as error:
                results.append(type(error).__name__)
        return results
