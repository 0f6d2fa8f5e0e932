"""A process that holds many leases by plain messages: `python -m benchmarks.driver_load PLAN`.

Attaches, keeps the leases alive, measures the driver's process, and prints a line of JSON. It maps no region,
so that the figures are those of the driver alone.
"""

from __future__ import annotations

import json
import struct
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import tensorpool as tp
from tensorpool import _native, sbe

from .driver_process import cpu_ns, media_driver_dir, open_descriptors, resident_bytes
from .endpoint_process import exit_with_parent, write_line
from .plan import JsonPlan

FIRST_STREAM = 20_000
KEEPALIVE_NS = 1_000_000_000
_CHANNEL = "aeron:ipc"
_CONTROL_STREAM = tp.StreamIds().control
_TIMEOUT_NS = 60_000_000_000
_TURN_S = 0.001
_MIN_SAMPLES_P99 = 100
"""Of fewer samples the 99th percentile would be the slowest one."""

_HEADER = struct.Struct("<HHHH")
_RESPONSE, _REVOKED, _SHUTDOWN = (
    (kind.layout().schema_id, kind.layout().template_id)
    for kind in (sbe.ShmAttachResponse, sbe.ShmLeaseRevoked, sbe.ShmDriverShutdown)
)

clock = time.monotonic_ns


@dataclass(frozen=True, slots=True)
class DriverLoadPlan(JsonPlan):
    """Number of streams, each with a producer and this number of consumers."""

    directory: str
    driver_pid: int
    streams: int
    consumers: int
    at_once: bool
    """True: send all requests at once and measure nothing else. False: wait for each response."""
    settle_s: float
    steady_s: float


def attach_requests(plan: DriverLoadPlan) -> list[sbe.ShmAttachRequest]:
    """Attach requests by stream, the producer first. The number of a request is its correlation id and client
    id."""
    roles = [
        (FIRST_STREAM + stream, role)
        for stream in range(plan.streams)
        for role in (sbe.Role.PRODUCER, *[sbe.Role.CONSUMER] * plan.consumers)
    ]
    return [
        sbe.ShmAttachRequest(
            correlation_id=number,
            stream_id=stream_id,
            client_id=number,
            role=role,
            publish_mode=sbe.PublishMode.EXISTING_OR_CREATE,
        )
        for number, (stream_id, role) in enumerate(roles, start=1)
    ]


class DriverLoad:
    """All leases, held and requested."""

    def __init__(self, conductor: _native.Conductor, requests: list[sbe.ShmAttachRequest]) -> None:
        self._publication = _native.Publication(conductor, _CHANNEL, _CONTROL_STREAM)
        # Tethered, like the driver's subscription: a lost response would only be requested again.
        self._subscription = _native.Subscription(conductor, f"{_CHANNEL}?tether=true", _CONTROL_STREAM)
        self._pending = {request.correlation_id: request for request in requests}
        # All have the same period, so the first is always due next.
        self._keepalives: deque[tuple[int, bytes]] = deque()

    def wait_connected(self) -> None:
        """Waits for the control stream in both directions."""
        deadline = clock() + _TIMEOUT_NS
        while not (self._publication.is_connected and self._subscription.is_connected):
            _check_deadline(deadline, "the control stream")
            time.sleep(_TURN_S)

    def attach_one_by_one(self) -> list[int]:
        """Attaches one client after the other; returns the nanoseconds of each."""
        taken = []
        for number, request in list(self._pending.items()):
            message, began = request.encode(), clock()
            self._send(message)
            while number in self._pending:
                self.poll()
                _check_deadline(began + _TIMEOUT_NS, f"the response to attach {number}")
            taken.append(clock() - began)
            self.keep_alive()
        return taken

    def attach_at_once(self) -> int:
        """Sends all requests, then waits; returns the nanoseconds until the last response."""
        messages = [request.encode() for request in self._pending.values()]
        began = clock()
        for message in messages:
            self._send(message)
        while self._pending:
            self.poll()
            self.keep_alive()
            _check_deadline(began + _TIMEOUT_NS, f"{len(self._pending)} responses")
        return clock() - began

    def spread_keepalives(self) -> None:
        """Spreads the keepalives evenly over their period, as independent clients would send them."""
        now, count = clock(), len(self._keepalives)
        self._keepalives = deque(
            (now + KEEPALIVE_NS * index // count, message)
            for index, (_, message) in enumerate(self._keepalives)
        )

    def keep_until(self, until: int) -> None:
        """Keeps all leases alive until a time."""
        while clock() < until:
            self.keep_alive()
            self.poll()
            time.sleep(_TURN_S)

    def keep_alive(self) -> None:
        """Sends the keepalives that are due."""
        now = clock()
        while self._keepalives and self._keepalives[0][0] <= now:
            due, message = self._keepalives.popleft()
            self._send(message)
            self._keepalives.append((due + KEEPALIVE_NS, message))

    def _send(self, message: bytes) -> None:
        deadline = clock() + _TIMEOUT_NS
        while self._publication.offer(message) != "sent":
            # The stream may be full of messages that this process has yet to read.
            self.poll()
            _check_deadline(deadline, "room on the control stream")

    def poll(self) -> None:
        """Handles the driver's messages."""
        for message in self._messages():
            _, template_id, schema_id, _ = _HEADER.unpack_from(message)
            match (schema_id, template_id):
                case key if key == _RESPONSE:
                    self._on_response(sbe.ShmAttachResponse.decode(message))
                case key if key in (_REVOKED, _SHUTDOWN):
                    raise SystemExit(f"a lease was lost: {sbe.decode(message)}")

    def _messages(self) -> Iterator[bytes]:
        while messages := self._subscription.poll(256):
            yield from messages

    def _on_response(self, response: sbe.ShmAttachResponse) -> None:
        if response.code is not sbe.ResponseCode.OK or response.lease_id is None:
            raise SystemExit(f"the driver rejected an attach: {response.error_message}")
        now, request = clock(), self._pending.pop(response.correlation_id)
        keepalive = sbe.ShmLeaseKeepalive(
            lease_id=response.lease_id,
            stream_id=request.stream_id,
            client_id=request.client_id,
            role=request.role,
            client_timestamp_ns=now,
        )
        self._keepalives.append((now + KEEPALIVE_NS, keepalive.encode()))


def _check_deadline(deadline: int, what: str) -> None:
    if clock() > deadline:
        raise SystemExit(f"timed out waiting for {what}")


def run(plan: DriverLoadPlan) -> dict[str, Any]:
    """Attaches all clients and measures the driver."""
    with tp.open(
        "standalone",
        aeron_dir=media_driver_dir(plan.directory),
        media_driver="external",
        shm_base_dir=plan.directory,
    ) as context:
        requests = attach_requests(plan)
        load = DriverLoad(context.connection.conductor, requests)
        load.wait_connected()
        if plan.at_once:
            return {"at_once_us": load.attach_at_once() / 1e3 / len(requests)}
        attach_us = np.array(load.attach_one_by_one()) / 1e3
        load.spread_keepalives()
        load.keep_until(clock() + int(plan.settle_s * 1e9))
        began, cpu = clock(), cpu_ns(plan.driver_pid)
        load.keep_until(began + int(plan.steady_s * 1e9))
        busy = (cpu_ns(plan.driver_pid) - cpu) / (clock() - began)
        return {
            "attach_us": float(attach_us.mean()),
            "attach_p99_us": float(np.percentile(attach_us, 99))
            if len(requests) >= _MIN_SAMPLES_P99
            else None,
            "resident_bytes": resident_bytes(plan.driver_pid, plan.directory),
            "descriptors": open_descriptors(plan.driver_pid),
            "busy_cores": busy,
        }


if __name__ == "__main__":
    exit_with_parent()
    write_line(json.dumps(run(DriverLoadPlan.from_json(sys.argv[1]))))
