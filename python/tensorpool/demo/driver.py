"""The driver process: owns all regions and Aeron's media driver.

`tensorpool driver` runs the same agent. This process also reports the driver's regions and every revoked
lease.
"""

from __future__ import annotations

import os
import sys
import time

from .. import context
from ..driver.client import DriverStatus, StreamRow
from ..errors import CodecError
from ..sbe import decode
from ..sbe.driver import ShmLeaseRevoked
from ..service import ServiceClient
from .processes import DemoOptions, ReportWriter, has_command, parse_options
from .reports import DriverReady, DriverSample, Revoked

_POLL_S = 0.005


def run_driver(options: DemoOptions, reports: ReportWriter) -> None:
    """Runs an embedded driver until the parent ends it."""
    sys.stdin.readline()
    with (
        context.open("embedded", aeron_dir=options.aeron_dir, shm_base_dir=options.base) as ctx,
        ctx.service("driver") as driver,
    ):
        control = ctx.connection.subscription(ctx.stream_ids.control_address)
        try:
            while not control.is_ready:
                time.sleep(_POLL_S)
            status: DriverStatus = driver.call("status")
            lease_s = status["keepalive_s"] * status["grace"]
            reports.send(DriverReady(pid=os.getpid(), lease_s=lease_s))
            while not has_command():
                for message in control.poll():
                    _report_revocation(message, reports)
                if reports.is_due():
                    reports.send(_sample(driver))
                time.sleep(_POLL_S)
        finally:
            control.close()


def _report_revocation(message: bytes, reports: ReportWriter) -> None:
    """ReportWriter the end of a lease, which the driver publishes on the control stream."""
    try:
        revoked = decode(message)
    except CodecError:
        return
    if isinstance(revoked, ShmLeaseRevoked):
        reports.send(
            Revoked(
                key=str(revoked.lease_id),
                revoked_ns=revoked.timestamp_ns,
                reason=revoked.reason.name.lower(),
                message=revoked.error_message,
            )
        )


def _sample(driver: ServiceClient) -> DriverSample:
    status: DriverStatus = driver.call("status")
    streams: list[StreamRow] = driver.call("streams")
    return DriverSample(
        leases=status["leases"],
        bytes=status["bytes"],
        epoch=streams[0]["epoch"] if streams else None,
        directory=streams[0]["directory"] if streams else None,
    )


if __name__ == "__main__":
    run_driver(parse_options(), ReportWriter())
