"""The driver process: owns all regions and Aeron's media driver.

`tensorpool driver` runs the same agent. This process also reports the driver's regions and every revoked
lease.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from .. import _native, context
from ..errors import CodecError
from ..sbe import decode
from ..sbe.driver import ShmLeaseRevoked
from ..service import ServiceClient
from .processes import DemoOptions, Reports, has_command, parse_options

_POLL_S = 0.005


def run_driver(options: DemoOptions, reports: Reports) -> None:
    """Runs an embedded driver until the parent ends it."""
    sys.stdin.readline()
    with (
        context.open("embedded", aeron_dir=options.aeron_dir, shm_base_dir=options.base) as ctx,
        ctx.service("driver") as driver,
    ):
        control = _native.Subscription(
            ctx.connection.conductor, "aeron:ipc?tether=false", ctx.stream_ids.control
        )
        try:
            while not control.is_ready:
                time.sleep(_POLL_S)
            status = driver.call("status")
            reports.send("ready", pid=os.getpid(), lease_s=status["keepalive_s"] * status["grace"])
            while not has_command():
                for message in control.poll():
                    _report_revocation(message, reports)
                if reports.is_due():
                    reports.send("sample", **_holdings(driver))
                time.sleep(_POLL_S)
        finally:
            control.close()


def _report_revocation(message: bytes, reports: Reports) -> None:
    """Reports the end of a lease, which the driver publishes on the control stream."""
    try:
        revoked = decode(message)
    except CodecError:
        return
    if isinstance(revoked, ShmLeaseRevoked):
        reports.send(
            f"revoked-{revoked.lease_id}",
            revoked_ns=revoked.timestamp_ns,
            reason=revoked.reason.name.lower(),
            message=revoked.error_message,
        )


def _holdings(driver: ServiceClient) -> dict[str, Any]:
    status, streams = driver.call("status"), driver.call("streams")
    stream = streams[0] if streams else {}
    return {
        "leases": status["leases"],
        "bytes": status["bytes"],
        "epoch": stream.get("epoch"),
        "directory": stream.get("directory"),
    }


if __name__ == "__main__":
    run_driver(parse_options(), Reports())
