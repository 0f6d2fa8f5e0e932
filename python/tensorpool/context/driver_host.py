"""Sees to it that a context has a driver: one that runs, or one embedded here.

An embedded driver ends with its process. Contexts that came to it by `mode="auto"` stand by: the first of
them to get its lock embeds the next one. A driver that runs as a service is never replaced by a program's.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from ..driver import EmbeddedDriver, Holder
from ..errors import DriverAlreadyRunning

_LOG = logging.getLogger(__name__)
_NAMELESS_S, _LOOK_S = 10.0, 0.02
_STANDBY_S = 0.25

Mode = Literal["auto", "driver", "embedded", "standalone"]


class DriverHost:
    """The driver's place in a context."""

    def __init__(
        self,
        mode: Mode,
        *,
        embed: Callable[[], EmbeddedDriver],
        is_connected: Callable[[], bool],
        place: str,
        aeron_dir: str,
        control_stream_id: int,
    ) -> None:
        self._mode = mode
        self._embed = embed
        self._is_connected = is_connected
        self._place = (place, str(Path(aeron_dir).absolute()), control_stream_id)
        self._driver: EmbeddedDriver | None = None
        self._standby: threading.Thread | None = None
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._pid = os.getpid()

    @property
    def is_here(self) -> bool:
        """Whether the driver runs inside this process."""
        return self._driver is not None

    def start(self) -> None:
        """Embeds a driver where the mode says so. Raises DriverHeld for one that is in the way."""
        if self._mode in ("driver", "standalone"):
            return
        try:
            self._driver = self._embed_or_name()
        except DriverAlreadyRunning as error:
            holder = Holder.parse(error.holder)
            if self._mode == "embedded" or holder is None or not self._is_ours(holder):
                raise
            if holder.embedded:
                self._standby = threading.Thread(target=self._stand_by, name="tp-driver-standby", daemon=True)
                self._standby.start()

    def _embed_or_name(self) -> EmbeddedDriver:
        """Embeds one, or raises DriverHeld once its holder, who may just have come, has said who it is."""
        nameless_since: float | None = None
        while True:
            try:
                return self._embed()
            except DriverAlreadyRunning as error:
                # Counted from the first refusal: on a busy machine the attempt alone may take seconds.
                now = time.monotonic()
                nameless_since = now if nameless_since is None else nameless_since
                if Holder.parse(error.holder) is not None or now - nameless_since > _NAMELESS_S:
                    raise
            time.sleep(_LOOK_S)

    def _is_ours(self, holder: Holder) -> bool:
        there = (holder.namespace, str(Path(holder.aeron_dir).absolute()), holder.control_stream_id)
        return there == self._place

    def _stand_by(self) -> None:
        while not self._closing.wait(_STANDBY_S):
            # Often both went with one process. Who has no media driver could only stand in another's way.
            if not self._is_connected():
                continue
            try:
                driver = self._embed()
            except DriverAlreadyRunning as error:
                holder = Holder.parse(error.holder)
                if holder is not None and not holder.embedded:
                    return
                continue
            except Exception:
                # The media driver may be on its way back, or the context on its way out.
                _LOG.debug("the driver cannot be embedded at the moment", exc_info=True)
                continue
            with self._lock:
                if not self._closing.is_set():
                    self._driver = driver
                    _LOG.info("the driver that this process was attached to is gone: embedding one here")
                    return
            driver.close()
            return

    def close(self) -> None:
        """Ends the embedded driver: those attached to it are told."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._closing.set()
        if self._standby is not None:
            self._standby.join()
        if self._driver is not None:
            self._driver.close()
