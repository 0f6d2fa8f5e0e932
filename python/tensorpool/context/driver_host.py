"""The SHM driver of a context: an embedded one with its takeover, and requests to a running one.

An embedded driver ends with its process. Contexts of other processes that attached to it by `mode="auto"`
stand by: the first of them that gets the driver's lock embeds the next driver. No program replaces a driver
that runs as a service.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Literal, TypeAlias

from ..client import Producer, ProducerOptions
from ..driver import EmbeddedDriver, Holder
from ..errors import DriverAlreadyRunning, ServiceError
from ..service import ServiceClient
from ..shm import parse_pools
from ..text import JsonObject
from ..units import size_literal

_LOG = logging.getLogger(__name__)
# A driver that has just taken its lock has not yet written its identity there.
_IDENTITY_TIMEOUT_S: Final = 10.0
_IDENTITY_POLL_S: Final = 0.02
_STANDBY_POLL_S: Final = 0.25

Mode: TypeAlias = Literal["auto", "driver", "embedded", "standalone"]


class DriverHost:
    """Embeds a driver in this process where the mode allows it, now or when the running one ends."""

    def __init__(
        self,
        mode: Mode,
        *,
        embed: Callable[[], EmbeddedDriver],
        is_connected: Callable[[], bool],
        qualified_namespace: str,
        aeron_dir: str,
        control_stream_id: int,
    ) -> None:
        self._mode = mode
        self._embed = embed
        self._is_connected = is_connected
        self._qualified_namespace = qualified_namespace
        self._aeron_dir = _absolute(aeron_dir)
        self._control_stream_id = control_stream_id
        self._driver: EmbeddedDriver | None = None
        self._standby: threading.Thread | None = None
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._pid = os.getpid()

    @property
    def is_embedded(self) -> bool:
        """Whether the driver runs inside this process."""
        return self._driver is not None

    def start(self) -> None:
        """Embeds a driver if the mode says so. Raises DriverAlreadyRunning if another one prevents that."""
        if self._mode in ("driver", "standalone"):
            return
        try:
            self._driver = self._embed_or_identify()
        except DriverAlreadyRunning as error:
            holder = Holder.parse(error.holder)
            if self._mode == "embedded" or holder is None or not self._serves_this_context(holder):
                raise
            if holder.embedded:
                self._standby = threading.Thread(target=self._stand_by, name="tp-driver-standby", daemon=True)
                self._standby.start()

    def _embed_or_identify(self) -> EmbeddedDriver:
        """An embedded driver; or DriverAlreadyRunning, as soon as the lock names its holder."""
        unidentified_since: float | None = None
        while True:
            try:
                return self._embed()
            except DriverAlreadyRunning as error:
                # Counted from the first refusal: on a busy host one attempt alone may take seconds.
                now = time.monotonic()
                unidentified_since = now if unidentified_since is None else unidentified_since
                if Holder.parse(error.holder) is not None or now - unidentified_since > _IDENTITY_TIMEOUT_S:
                    raise
            time.sleep(_IDENTITY_POLL_S)

    def _serves_this_context(self, holder: Holder) -> bool:
        return (
            holder.namespace == self._qualified_namespace
            and _absolute(holder.aeron_dir) == self._aeron_dir
            and holder.control_stream_id == self._control_stream_id
        )

    def _stand_by(self) -> None:
        while not self._closing.wait(_STANDBY_POLL_S):
            # The media driver often ended with the same process. Without a media driver an embedded driver
            # would only keep other contexts from embedding theirs.
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
                # The media driver may be restarting, or the context closing.
                _LOG.debug("the driver cannot be embedded at the moment", exc_info=True)
                continue
            with self._lock:
                if not self._closing.is_set():
                    self._driver = driver
                    _LOG.info("the driver that this process was attached to has ended: embedding one here")
                    return
            driver.close()
            return

    def close(self) -> None:
        """Ends the embedded driver, which notifies its clients."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._closing.set()
        if self._standby is not None:
            self._standby.join()
        if self._driver is not None:
            self._driver.close()


def _absolute(aeron_dir: str) -> str:
    return str(Path(aeron_dir).absolute())


def query_announce_period(driver: ServiceClient) -> int | None:
    """The announce period of a running driver in nanoseconds; 0 if it reports none that can be used.

    None if the driver does not answer, or does not know the request: a later one may.
    """
    try:
        period_ns: int = round(driver.call("status")["announce_period_s"] * 1e9)
    except (ServiceError, KeyError, TypeError, ValueError, OverflowError):
        return None
    return max(period_ns, 0)


def layout_fault(producer: Producer, options: ProducerOptions) -> str | None:
    """What the granted layout lacks of the requested one; None if it has all."""
    pools = None if options.pools is None else tuple(stride for _, stride in parse_pools(options.pools))
    nslots_differ = options.nslots is not None and producer.nslots != options.nslots
    pools_differ = pools is not None and producer.pools != tuple(sorted(pools))
    if not nslots_differ and not pools_differ:
        return None
    return (
        f"{_layout_text(producer.nslots, producer.pools)} instead of the requested "
        f"{_layout_text(options.nslots, pools)}"
    )


def _layout_text(nslots: int | None, pools: Sequence[int] | None) -> str:
    parts = [] if nslots is None else [f"{nslots} slots"]
    parts += ["pools of " + ", ".join(size_literal(stride) for stride in pools)] if pools else []
    return " and ".join(parts)


def provision_stream(driver: ServiceClient, stream_id: int, options: ProducerOptions) -> None:
    """Tells the driver the layout and the names of a stream that a producer is about to attach to.

    Raises ServiceError.
    """
    request: JsonObject = {"stream_id": stream_id}
    if options.pools is not None:
        request["pools"] = [stride for _, stride in parse_pools(options.pools)]
    if options.nslots is not None:
        request["nslots"] = options.nslots
    if options.numa_node is not None:
        request["numa_node"] = options.numa_node
    if options.name is not None:
        request["name"] = options.name
    if options.tags:
        request["tags"] = list(options.tags)
    driver.call("provision", request)
