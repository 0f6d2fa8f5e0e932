"""A process of the demo as the director sees it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from ..errors import TensorPoolError


class DemoFailed(TensorPoolError):
    """A process of the demo ended early or did not answer."""


class Told(Protocol):
    """What a process is told when it starts."""

    def arguments(self) -> list[str]: ...


class Player:
    """A child process and the last thing it said of each kind."""

    def __init__(
        self,
        name: str,
        module: str,
        role: Told,
        environment: Mapping[str, str],
        prefix: Sequence[str] = (),
    ) -> None:
        self.name = name
        self._said: dict[str, dict[str, Any]] = {}
        self._before: dict[str, Any] | None = None
        self._changed = threading.Condition()
        command = [*prefix, sys.executable, "-m", f"tensorpool.demo.{module}", *role.arguments()]
        # Its own session: a Ctrl-C is the director's to handle, so that the ledger is still told.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, name=f"demo-{name}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                report = json.loads(line)
            except ValueError:
                # Cut off in the middle: it was killed.
                break
            with self._changed:
                if report["kind"] == "sample":
                    self._before = self._said.get("sample")
                self._said[report["kind"]] = report
                self._changed.notify_all()
        with self._changed:
            self._said.setdefault("end", {})
            self._changed.notify_all()

    def tell(self, word: str = "go") -> None:
        """A line on its stdin; what it means is the process's own affair."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(word + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise DemoFailed(f"the {self.name} ended early; its words are above") from None

    def wait_for(self, kind: str, timeout: float) -> dict[str, Any]:
        with self._changed:
            self._changed.wait_for(lambda: kind in self._said or "end" in self._said, timeout)
            if kind in self._said:
                return self._said[kind]
        state = "ended early; its words are above" if self._process.poll() is not None else "does not answer"
        raise DemoFailed(f"the {self.name} {state}")

    def check_alive(self) -> None:
        """Raises if it ended before it gave its ledger."""
        with self._changed:
            if "end" in self._said and "ledger" not in self._said:
                raise DemoFailed(f"the {self.name} ended early; its words are above")

    def heard(self, kind: str) -> dict[str, Any] | None:
        with self._changed:
            return self._said.get(kind)

    def sample(self) -> dict[str, Any]:
        """How it stood a moment ago; empty before its first word."""
        return self.heard("sample") or {}

    def rates(self) -> tuple[float, float]:
        """Frames and bytes a second between its last two samples."""
        with self._changed:
            now, before = self._said.get("sample"), self._before
        if now is None or before is None or now["at_ns"] <= before["at_ns"]:
            return 0.0, 0.0
        elapsed = (now["at_ns"] - before["at_ns"]) / 1e9
        return (now["frames"] - before["frames"]) / elapsed, (now["bytes"] - before["bytes"]) / elapsed

    def kill(self) -> None:
        """SIGKILL: it gets no chance to say or do anything more."""
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """Lets it finish, and does not wait for ever."""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()
        self._reader.join()
        if self._process.stdout is not None:
            self._process.stdout.close()
