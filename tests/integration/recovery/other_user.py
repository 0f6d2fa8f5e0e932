"""A client process of another user than the driver's."""

from __future__ import annotations

import codecs
import os
from pathlib import Path
from typing import Any

from tensorpool.context import load_config
from tensorpool.service import Event

from .client_process import ClientProcess


class OtherUserProcess(ClientProcess):
    """Starts as root, reads its configuration, and then drops all rights of root."""

    def __init__(self, uid: int, config: str) -> None:
        super().__init__()
        self.config = load_config(config)
        # Import late modules now: only root may be allowed to read the interpreter's files.
        Event("service:any", "key", 1).encode()
        codecs.lookup("ascii")
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)

    def open(self, **options: Any) -> bool:
        """Opens a context with the configuration that root has read."""
        return super().open(**{**options, "config": self.config})

    def attempt(self, directory: str) -> list[str]:
        """Tries to create, rename and remove files, which a client must not; returns each outcome."""
        path = Path(directory)
        attempts = (
            (path / "9.pool").touch,
            (path / "header.ring").unlink,
            lambda: (path / "header.ring").rename(path / "other.ring"),
            lambda: path.rename(path.with_name("1")),
            lambda: path.with_name("2").mkdir(),
        )
        results = []
        for change in attempts:
            try:
                change()
                results.append("worked")
            except OSError as error:
                results.append(type(error).__name__)
        return results
