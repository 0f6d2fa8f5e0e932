"""The driver's process: owns all memory and Aeron's media driver, and does nothing else.

`tensorpool driver` runs the same agent. Here it reports what it holds, and each lease that ended.
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
from .processes import Reports, Role, role_arguments, was_told

_LOOK_S = 0.005


def run_driver(role: Role, reports: Reports) -> None:
    sys.stdin.readline()
    with (
        context.open("embedded", aeron_dir=role.aeron_dir, shm_base_dir=role.base) as ctx,
        ctx.service("driver") as driver,
    ):
        notices = _native.Subscription(
            ctx.connection.conductor, "aeron:ipc?tether=false", ctx.stream_ids.control
        )
        try:
            while not notices.is_ready:
                time.sleep(_LOOK_S)
            status = driver.call("status")
            reports.say("ready", pid=os.getpid(), lease_s=status["keepalive_s"] * status["grace"])
            while not was_told():
                for message in notices.poll():
                    _tell(message, reports)
                if reports.due():
                    reports.say("sample", **_holdings(driver))
                time.sleep(_LOOK_S)
        finally:
            notices.close()


def _tell(message: bytes, reports: Reports) -> None:
    """The end of a lease, as the driver tells everybody."""
    try:
        found = decode(message)
    except CodecError:
        return
    if isinstance(found, ShmLeaseRevoked):
        reports.say(
            f"ended-{found.lease_id}",
            noticed_ns=found.timestamp_ns,
            reason=found.reason.name.lower(),
            words=found.error_message,
        )


def _holdings(driver: ServiceClient) -> dict[str, Any]:
    status, streams = driver.call("status"), driver.call("streams")
    live = streams[0] if streams else {}
    return {
        "leases": status["leases"],
        "bytes": status["bytes"],
        "epoch": live.get("epoch"),
        "directory": live.get("directory"),
    }


if __name__ == "__main__":
    run_driver(role_arguments(), Reports())
