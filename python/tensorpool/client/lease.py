"""Producers and consumers on a driver: the lease behind them, and what is said when there is none.

Asking, keeping alive and asking again happen on the conductor's thread; here is what a user sees of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from .. import _native
from ..errors import AttachError
from .consumer import Consumer
from .options import PerConsumerStreams
from .producer import Producer

# A producer that died a moment ago may still hold the stream; the driver is about to notice.
_PATIENCE_S = 0.5
_POLL_S = 0.001
# Gigabytes are made at about one a second.
_LONGEST_MAKING_S = 600.0
_ASK_AGAIN_S = 0.1
_HOPELESS = frozenset({"INVALID_PARAMS", "UNSUPPORTED", "PROTOCOL", "REGIONS", "NO_ANSWER"})
_REMEDIES = {
    "REJECTED": "`tensorpool driver leases` shows who holds what",
    "INVALID_PARAMS": "compare what was asked for with the stream's configuration "
    "(`tensorpool driver streams`)",
    "UNSUPPORTED": "the driver does not know this; [context] attach_revision names the other revision",
    "INTERNAL_ERROR": "the driver's log has the details, `tensorpool doctor` looks for causes",
    "REGIONS": "the driver granted it, and this process may not use the memory: check group membership and "
    "allowed_base_dirs",
    "PROTOCOL": "driver and client do not fit together; compare their versions",
}


@dataclass(frozen=True, slots=True)
class LeaseOptions:
    """How a lease is asked for and kept."""

    keepalive_ns: int
    announce_period_ns: int
    attach_timeout_ns: int
    retry_ns: int
    revision: int
    control_stream_id: int

    def native(self, *, may_create: bool, require_hugepages: bool = False) -> dict[str, int | bool]:
        return {
            "may_create": may_create,
            "require_hugepages": require_hugepages,
            "revision": self.revision,
            "keepalive_ns": self.keepalive_ns,
            "announce_period_ns": self.announce_period_ns,
            "attach_timeout_ns": self.attach_timeout_ns,
            "retry_ns": self.retry_ns,
        }


class LeasedProducer(Producer):
    """A producer that writes into a driver's memory while it holds the stream's one producer lease."""

    @classmethod
    def attach(
        cls,
        conductor: _native.Conductor,
        stream_id: int,
        terms: LeaseOptions,
        *,
        streams: PerConsumerStreams,
        descriptor_channel: str,
        descriptor_stream_id: int,
        publish_timestamps: bool,
        prefault: bool,
        require_hugepages: bool = False,
    ) -> Self:
        return cls.__new__(
            cls,
            conductor,
            stream_id=stream_id,
            descriptor_channel=descriptor_channel,
            descriptor_stream_id=descriptor_stream_id,
            publish_timestamps=publish_timestamps,
            prefault=prefault,
            announce_period_ns=terms.announce_period_ns,
            qos_period_ns=streams.period_ns,
            grants=streams.grants,
            lease=terms.native(may_create=True, require_hugepages=require_hugepages),
        )


def wait_attached(
    endpoint: Producer | Consumer, terms: LeaseOptions, driver_answers: Callable[[], bool] = lambda: False
) -> None:
    """Waits for the driver's first answer. Raises AttachError for one that means no.

    A consumer may come before its stream: it is told "not yet", and goes on asking by itself. A driver that
    answers other questions is making the files, which for gigabytes takes its time.
    """
    answer_by = time.monotonic() + terms.attach_timeout_ns / 1e9 + 1
    patient_until = time.monotonic() + _LONGEST_MAKING_S
    refused_since: float | None = None
    while (lease := _lease_of(endpoint))["granted"] == 0:
        now = time.monotonic()
        code = lease["code"]
        if code is None and now > answer_by:
            code = "NO_ANSWER"
        if code == "NO_ANSWER" and now < patient_until and driver_answers():
            time.sleep(_ASK_AGAIN_S)
            continue
        if code in _HOPELESS:
            raise attach_error(endpoint.stream_id, code, lease["message"] or "", terms)
        if code is not None:
            if isinstance(endpoint, Consumer):
                return
            refused_since = refused_since or now
            if now - refused_since > _PATIENCE_S or code != "REJECTED":
                raise attach_error(endpoint.stream_id, code, lease["message"] or "", terms)
        time.sleep(_POLL_S)


def _lease_of(endpoint: Producer | Consumer) -> dict[str, Any]:
    lease = endpoint.lease()
    assert lease is not None, "only endpoints on a driver wait for a lease"
    return lease


def attach_error(stream_id: int, code: str, message: str, terms: LeaseOptions) -> AttachError:
    """The error for a refusal: what the driver said, and what can be done about it."""
    if code == "NO_ANSWER":
        message = (
            f"no driver answers on control stream {terms.control_stream_id} "
            f"(asked in revision {terms.revision} of the attach messages)"
        )
        remedy = (
            "start one with `tensorpool driver`, check aeron_dir and control_stream_id, or set "
            "attach_revision in [context] if the driver speaks the other one"
        )
    else:
        remedy = _REMEDIES.get(code, _REMEDIES["REJECTED"])
    return AttachError(message, code=code, remedy=remedy, stream_id=stream_id)
