"""What producers and consumers of a context have in common: their handles, their leases, what they tell."""

from __future__ import annotations

import logging
import threading
import weakref
from dataclasses import replace
from typing import Any, TypeVar

from ..client import Consumer, LeaseOptions, PerConsumerStreams, Producer, ReportOptions, wait_attached
from ..errors import ConfigError, MediaDriverUnavailable, ServiceError
from ..transport import Connection
from .describing import WithMetadata
from .driver_host import DriverHost, Mode
from .services import WithServices

_LOG = logging.getLogger(__name__)
# So many attachments of a context are told of: a media driver has room for some thousand counters, and a
# program may have a thousand streams.
_MOST_REPORTED = 64
# Held for moments, when an endpoint is made: several threads may do so at once.
_reporting = threading.Lock()
_Endpoint = TypeVar("_Endpoint", Producer, Consumer)


class WithEndpoints(WithServices, WithMetadata):
    """The part of a context that gives out producers and consumers."""

    connection: Connection
    mode: Mode
    _terms: LeaseOptions
    _streams: PerConsumerStreams
    _endpoints: weakref.WeakSet[Producer | Consumer]
    _reported: weakref.WeakSet[Producer | Consumer]
    _host: DriverHost
    _knows_period: bool
    _reports: ReportOptions

    def _descriptor_stream(self, given: int | None) -> int:
        stream = self.stream_ids.descriptor if given is None else given
        if not 0 < stream < 1 << 31:
            raise ConfigError(f"descriptor stream id {stream}: use 1 to 2147483647, as in 1100")
        return stream

    def _ready(self, endpoint: _Endpoint) -> _Endpoint:
        """Waits until Aeron has given the endpoint its handle."""
        self._endpoints.add(endpoint)
        # Whoever keeps only the endpoint keeps the context too, and so the close at exit.
        endpoint._context = self
        try:
            self.connection.wait_ready(endpoint)
        except MediaDriverUnavailable:
            endpoint.close()
            raise
        if self.mode != "standalone" and endpoint.lease() is not None:
            try:
                wait_attached(endpoint, self._terms, self._driver_answers)
            except BaseException:
                endpoint.close()
                raise
        self._report(endpoint)
        return endpoint

    def _report(self, endpoint: Producer | Consumer) -> None:
        """Lets it be told of, if there is room: who has closed makes some."""
        status = (self.service_streams.channel, self.service_streams.status)
        with _reporting:
            for one in [one for one in self._reported if one._reporter is None]:
                self._reported.discard(one)
            if len(self._reported) < _MOST_REPORTED:
                endpoint._reporter = self._reports.begin(endpoint, status, self._streams.period_ns)
                self._reported.add(endpoint)

    def _driver_answers(self) -> bool:
        """Whether there is a driver at all: it may be busy with what was asked for."""
        try:
            with self.service("driver", timeout=1.0) as driver:
                driver.ping()
        except ServiceError:
            return False
        return True

    def _learn_period(self) -> None:
        """Freshness is judged by the driver's announce period: once, the driver is asked for it."""
        if self.mode == "standalone" or self._knows_period or self._host.is_here:
            return
        try:
            with self.service("driver", timeout=1.0) as driver:
                period_ns = round(driver.call("status")["announce_period_s"] * 1e9)
        except (ServiceError, KeyError, TypeError, ValueError, OverflowError):
            # A driver of another make, or none yet: our own setting has to do.
            return
        self._knows_period = True
        if period_ns <= 0:
            return
        if period_ns != self._announce_period_ns:
            _LOG.info("the driver announces every %.3g s: taken over", period_ns / 1e9)
            self._announce_period_ns = self.connection.announce_period_ns = period_ns
            self._terms = replace(self._terms, announce_period_ns=period_ns)


def checked_stream_id(stream_id: Any) -> int:
    if not isinstance(stream_id, int):
        raise ConfigError(f"stream id {stream_id!r}: use a whole number, as in 10000")
    if not 0 < stream_id < 0xFFFF_FFFF:
        raise ConfigError(f"stream id {stream_id}: use 1 to 4294967294, as in 10000")
    return stream_id
