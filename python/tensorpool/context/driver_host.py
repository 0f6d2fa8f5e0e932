"""The owner of a context's regions: an embedded driver with its takeover, a running one, or the producer.

`DriverRequests` is what a context asks of the driver, whichever process it runs in.

An embedded driver ends with its process. Contexts of other processes that attached to it by `mode="auto"`
stand by: the first of them that gets the driver's lock embeds the next driver. No program replaces a driver
that runs as a service.

`create_regions` makes the regions of a producer without a driver, with the access that `[driver]` configures.
A stream has the same group, mode, owner and pages with a driver and without one, so that a program can change
between both.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal, TypeAlias

from ..client import LeaseOptions, Producer, ProducerOptions
from ..client.lease import attach_error, lease_status
from ..driver import DEFAULT_NSLOTS, DriverSettings, EmbeddedDriver, Holder, namespace_on
from ..driver.plan import Plan
from ..driver.storage import BaseDirs, StreamDirectories, group_id, owner_id, set_owner
from ..errors import (
    AttachError,
    ClosedError,
    CommandFailed,
    ConfigError,
    DriverAlreadyRunning,
    NoSuchService,
    RequestRejected,
    ServiceError,
    ServiceTimeout,
)
from ..service import ServiceClient
from ..shm import parse_pools
from ..shm.epoch_files import RegionAccess
from ..shm.ownership import OwnedRegions
from ..text import JsonValue
from ..transport import Connection
from ..units import size_literal

_LOG = logging.getLogger(__name__)
# A driver that has just taken its lock has not yet written its identity there.
_IDENTITY_TIMEOUT_S: Final = 10.0
_IDENTITY_POLL_S: Final = 0.02
_STANDBY_POLL_S: Final = 0.25
_TIMEOUT_S: Final = 1.0
_PROVISION_RETRY_S: Final = 0.01
# A pool that follows the first frame takes at most so much, with fewer slots than the stream has if need be:
# all memory is allocated at once, and many slots that were meant for small frames would fill the machine.
FITTED_POOL_BYTES: Final = 1 << 30
_MIN_FITTED_SLOTS: Final = 4

Mode: TypeAlias = Literal["auto", "driver", "embedded", "standalone"]


class DriverHost:
    """Embeds a driver in this process where the mode allows it, now or when the running one ends."""

    def __init__(
        self,
        mode: Mode,
        *,
        embed: Callable[[], EmbeddedDriver],
        find_holder: Callable[[], Holder | None],
        is_connected: Callable[[], bool],
        qualified_namespace: str,
        aeron_dir: str,
        control_stream_id: int,
    ) -> None:
        self._mode = mode
        self._embed = embed
        self._find_holder = find_holder
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
                # Read first: an attempt starts a thread and opens files.
                holder = self._find_holder()
                driver = self._embed() if holder is None else None
            except DriverAlreadyRunning as error:
                holder, driver = Holder.parse(error.holder), None
            except Exception:
                # The media driver may be restarting, or the context closing.
                _LOG.debug("the driver cannot be embedded at the moment", exc_info=True)
                continue
            # Without a process: it has just taken the lock, and has not yet written its identity there.
            if holder is not None and holder.pid and not holder.embedded:
                return
            if driver is None:
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


class DriverRequests:
    """What a context asks of its driver beside leases: layouts of streams, its period, whether it answers.

    Only a driver of this package has a service to ask. One of another implementation grants leases alone.
    """

    def __init__(
        self,
        host: DriverHost,
        connection: Connection,
        lease: LeaseOptions,
        open_service: Callable[[float], ServiceClient],
    ) -> None:
        """`open_service` opens a client of the driver's service, with a timeout in seconds."""
        self._host = host
        self._connection = connection
        self.lease = lease
        """How leases are requested."""
        self._open_service = open_service
        self._has_period = False

    def use_revision(self, revision: int) -> None:
        """Later leases are requested in this revision of the attach messages first."""
        self.lease = replace(self.lease, revision=revision)

    @property
    def _has_own_driver(self) -> bool:
        """Whether a driver of this package runs on the control stream."""
        control = self._connection.stream_ids.control
        return self._host.is_embedded or namespace_on(self._connection.aeron_dir, control) is not None

    def answers(self) -> bool:
        """Whether the driver of this control stream runs. The service may be that of another driver."""
        if not self._has_own_driver:
            return False
        try:
            with self._open_service(_TIMEOUT_S) as driver:
                driver.ping()
        except ServiceError:
            return False
        return True

    def adopt_period(self) -> None:
        """Queries the announce period of a running driver, once: freshness depends on it."""
        if self._has_period or self._host.is_embedded:
            return
        try:
            with self._open_service(_TIMEOUT_S) as driver:
                period_ns = query_announce_period(driver)
        except ServiceError:
            period_ns = None
        if period_ns is None:
            # No driver yet, or one of another implementation: the configured period must do.
            return
        self._has_period = True
        if period_ns and period_ns != self._connection.announce_period_ns:
            _LOG.info("the driver announces every %.3g s: using this period", period_ns / 1e9)
            self._connection.announce_period_ns = period_ns

    def provision(self, stream_id: int, options: ProducerOptions, *, is_reopened: bool) -> bool:
        """Sends the layout and the names of a stream to the driver; False if no own driver runs."""
        if not self._has_own_driver:
            return False
        # The driver refuses a layout until it has read the detach of a producer that was closed just now.
        deadline = time.monotonic() + (_TIMEOUT_S if is_reopened else 0.0)
        while True:
            try:
                self._provision_once(stream_id, options)
            except AttachError as error:
                if error.code != "REJECTED" or time.monotonic() > deadline:
                    raise
                time.sleep(_PROVISION_RETRY_S)
            else:
                return True

    def _provision_once(self, stream_id: int, options: ProducerOptions) -> None:
        try:
            with self._open_service(self.lease.attach_timeout_ns / 1e9) as driver:
                provision_stream(driver, stream_id, options)
        except (RequestRejected, CommandFailed) as error:
            raise attach_error(stream_id, "REJECTED", str(error), self.lease) from None
        except (NoSuchService, ServiceTimeout):
            raise attach_error(stream_id, "NO_ANSWER", "", self.lease) from None

    def accepts_layout(self, producer: Producer, options: ProducerOptions) -> bool:
        """Whether a producer that could not provision its stream keeps what it was granted.

        A driver of this package that started meanwhile gets the layout now. A foreign driver takes none: the
        producer uses what it offers, and the log shows the difference.
        """
        if self._has_own_driver:
            return False
        fault = layout_fault(producer, options)
        # Such a driver reports no period either.
        self._has_period = True
        if fault is not None:
            _LOG.warning(
                "stream %d: the driver on control stream %d is of another implementation and takes no layout "
                "from its clients: it granted %s; configure the stream there",
                producer.stream_id,
                self._connection.stream_ids.control,
                fault,
            )
        return True

    def add_pool(self, reference: weakref.ref[Producer], options: ProducerOptions, nbytes: int) -> bool:
        """Gives the stream of a producer one more pool, for frames of `nbytes`; False if the driver refuses.

        The stream gets a new epoch. The driver takes a layout only while the stream has no producer, so the
        producer returns its lease meanwhile. A ring whose slots the user did not choose becomes shorter if
        the pool would be larger than FITTED_POOL_BYTES.
        """
        producer = reference()
        if producer is None or producer.closed:
            return False
        fit = 1 << max(nbytes - 1, 0).bit_length()
        pools = (*producer.pools, fit)
        nslots, present = options.nslots, producer.nslots
        if nslots is None and present is not None and present * fit > FITTED_POOL_BYTES:
            nslots = min(present, max(FITTED_POOL_BYTES // fit, _MIN_FITTED_SLOTS))
        granted = lease_status(producer).granted
        try:
            parse_pools(pools)
        except ConfigError:
            return False
        if not self._has_own_driver or not producer.suspend_lease():
            return False
        try:
            self.provision(producer.stream_id, replace(options, pools=pools, nslots=nslots), is_reopened=True)
        except (AttachError, ClosedError, ConfigError) as error:
            _LOG.info("stream %d got no pool of %d bytes: %s", producer.stream_id, fit, error)
            pools = ()
        finally:
            producer.resume_lease()
        deadline = time.monotonic() + self.lease.attach_timeout_ns / 1e9
        while lease_status(producer).granted == granted and time.monotonic() < deadline:
            time.sleep(_PROVISION_RETRY_S)
        return bool(pools) and producer.attached


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
    """Sends the layout and the names of a stream to the driver, before a producer attaches to it.

    Raises ServiceError.
    """
    request: dict[str, JsonValue] = {"stream_id": stream_id}
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


def create_regions(
    stream_id: int,
    options: ProducerOptions,
    settings: DriverSettings,
    *,
    base_dir: Path,
    namespace: str,
    stale_after_ns: int,
) -> OwnedRegions:
    """The regions of the next epoch, where a driver with these settings would create them.

    `base_dir`: for streams that the settings place nowhere else. Raises StreamBusy, RegionCreateError, or
    ConfigError for an unknown group or user.
    """
    plans = Plan(settings)
    plan = plans.get(stream_id) or plans.dynamic_plan(stream_id)
    plan = replace(plan, hugepages=plan.hugepages or options.require_hugepages)
    base_dir = BaseDirs.probe(base_dir, settings).base_dir(plan)
    access, owner = plan.access, owner_id(plan.access)
    directories = StreamDirectories(base_dir, namespace)
    directories.make(stream_id, access)
    try:
        regions = OwnedRegions.create(
            stream_id,
            base_dir=base_dir,
            namespace=namespace,
            nslots=options.nslots or DEFAULT_NSLOTS,
            pools=parse_pools(options.pools),
            stale_after_ns=stale_after_ns,
            access=RegionAccess(
                dir_mode=access.dir_mode,
                file_mode=access.file_mode,
                group=group_id(access),
                require_hugepages=plan.hugepages,
            ),
        )
    except BaseException:
        directories.remove_if_empty(stream_id)
        raise
    try:
        set_owner(owner, regions.files.directory)
    except BaseException:
        regions.remove()
        raise
    return regions
