"""A process of another user that tries to open the files of a media driver while it starts."""

from __future__ import annotations

import os
import threading


class Intruder:
    """Starts as root and drops all rights of root."""

    def __init__(self, uid: int) -> None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        self._opened: set[str] = set()
        self._attempts = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._paths: list[str] = []

    def start(self, directory: str) -> None:
        """Tries to open the directory and all that is in it, again and again."""
        names = ("publications", "images", "cnc.dat", "loss-report.dat")
        self._paths = [directory, *(f"{directory}/{name}" for name in names)]
        self._thread.start()

    def attempts(self) -> int:
        """Rounds so far."""
        return self._attempts

    def finish(self) -> list[str]:
        """Ends the attempts; returns the paths that could be opened."""
        self._ended.set()
        self._thread.join()
        return sorted(self._opened)

    def _run(self) -> None:
        while not self._ended.is_set():
            for path in self._paths:
                try:
                    os.close(os.open(path, os.O_RDONLY))
                except OSError:
                    continue
                self._opened.add(path)
            self._attempts += 1
