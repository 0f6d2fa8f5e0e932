"""Leases of producers and consumers: options, the wait for the first grant, and attach errors (driver §4).

The conductor thread requests a lease, keeps it alive and requests it again after a loss. This module only
reads the state of the lease, on the thread of the caller.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from .. import _native
from ..errors import AttachError

# A producer that died a moment ago may still hold the stream's lease; the driver revokes it soon.
_REJECTED_RETRY_S: Final = 0.5
_POLL_S: Final = 0.001
# The driver allocates about one gigabyte a second.
_MAX_ALLOCATION_S: Final = 600.0
_PING_PERIOD_S: Final = 0.1
_ANSWER_MARGIN_S: Final = 1.0
_FINAL_CODES: Final = frozenset(
    {"INVALID_PARAMS", "UNSUPPORTED", "PROTOCOL", "REGIONS", "CLOCK_DOMAIN", "NO_ANSWER"}
)
REMEDIES: Final = {
    "REJECTED": "`tensorpool driver leases` shows who holds what",
    "INVALID_PARAMS": "compare the request with the stream's configuration (`tensorpool driver streams`)",
    "UNSUPPORTED": "the driver does not know this request; [context] attach_revision sets the revision that "
    "it knows",
    "INTERNAL_ERROR": "the driver's log has the details, `tensorpool doctor` looks for causes",
    "REGIONS": "the driver granted the lease, but this process may not use the regions: check group "
    "membership and allowed_base_dirs",
    "CLOCK_DOMAIN": "set clock_domain in [aeron], or tp.open(clock_domain=…), to the driver's",
    "PROTOCOL": "driver and client do not fit together; compare their versions",
}
"""What a user can do, by the code of a refusal."""


@dataclass(frozen=True, slots=True)
class LeaseOptions:
    """How a lease is requested and kept alive."""

    keepalive_ns: int
    attach_timeout_ns: int
    retry_ns: int
    revision: int
    """Revision of the first attach messages."""
    tries_other_revision: bool
    """Unanswered attach messages are sent in the other revision too."""
    control_stream_id: int

    @classmethod
    def revisions(cls, setting: str) -> tuple[int, bool]:
        """The first revision, and whether to try the other, of the setting `attach_revision`."""
        return (1, True) if setting == "auto" else (int(setting), False)


def wait_attached(
    endpoint: _native.Producer | _native.Consumer,
    options: LeaseOptions,
    driver_answers: Callable[[], bool] = lambda: False,
) -> None:
    """Waits for the driver's first response. Raises AttachError for a refusal that retries do not change.

    A consumer may attach before its stream exists: the conductor repeats its request. `driver_answers`
    distinguishes a driver that is busy allocating memory from a driver that does not run.
    """
    answer_deadline = time.monotonic() + options.attach_timeout_ns / 1e9 + _ANSWER_MARGIN_S
    allocation_deadline = time.monotonic() + _MAX_ALLOCATION_S
    rejected_since: float | None = None
    while (lease := lease_status(endpoint)).granted == 0:
        now = time.monotonic()
        code = lease.code
        if code is None and now > answer_deadline:
            code = "NO_ANSWER"
        if code == "NO_ANSWER" and now < allocation_deadline and driver_answers():
            time.sleep(_PING_PERIOD_S)
            continue
        if code in _FINAL_CODES:
            raise attach_error(endpoint.stream_id, code, lease.message or "", options)
        if code is not None:
            if isinstance(endpoint, _native.Consumer):
                return
            rejected_since = rejected_since or now
            if now - rejected_since > _REJECTED_RETRY_S or code != "REJECTED":
                raise attach_error(endpoint.stream_id, code, lease.message or "", options)
        time.sleep(_POLL_S)


def lease_status(endpoint: _native.Producer | _native.Consumer) -> _native.LeaseStatus:
    """The lease of an endpoint that is attached to a driver, or about to be."""
    lease = endpoint.lease()
    assert lease is not None, "only endpoints of a driver have a lease"
    return lease


def attach_error(stream_id: int, code: str, message: str, options: LeaseOptions) -> AttachError:
    """The error for a refusal: the driver's message, and what a user can do."""
    if code == "NO_ANSWER":
        asked = "both revisions" if options.tries_other_revision else f"revision {options.revision}"
        message = (
            f"no driver answers on control stream {options.control_stream_id} "
            f"(asked in {asked} of the attach messages)"
        )
        remedy = "start one with `tensorpool driver`, or check aeron_dir and control_stream_id"
        if not options.tries_other_revision:
            remedy += ', or set attach_revision = "auto" in [context] to try the other revision too'
    else:
        remedy = REMEDIES.get(code, REMEDIES["REJECTED"])
        if code == "REJECTED" and "is not configured" in message:
            # No client holds it: the driver's message says what to change.
            remedy = "`tensorpool driver streams` shows the streams of this driver"
    return AttachError(message, code=code, remedy=remedy, stream_id=stream_id)
