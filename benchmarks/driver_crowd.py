"""Many leases from one process, by bare messages: `python -m benchmarks.driver_crowd PLAN`.

Attaches, keeps all of it alive, looks at the driver meanwhile, and ends with a line of JSON. Nothing is
mapped here, so that the figures are the driver's own.
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

from .driver_process import cpu_ns, descriptors, media_driver_dir, resident_bytes
from .plan_text import PlanText
from .role import obey_the_parent, say

FIRST_STREAM = 20_000
KEEPALIVE_NS = 1_000_000_000
_CHANNEL = "aeron:ipc"
_CONTROL_STREAM = tp.StreamIds().control
_PATIENCE_NS = 60_000_000_000
_ROUND_S = 0.001
_P99_OF = 100
"""Of fewer it would only be the slowest."""

_HEADER = struct.Struct("<HHHH")
_RESPONSE, _REVOKED, _SHUTDOWN = (
    (kind.layout().schema_id, kind.layout().template_id)
    for kind in (sbe.ShmAttachResponse, sbe.ShmLeaseRevoked, sbe.ShmDriverShutdown)
)

clock = time.monotonic_ns


@dataclass(frozen=True, slots=True)
class CrowdPlan(PlanText):
    """So many streams, each with a producer and so many consumers."""

    directory: str
    driver_pid: int
    streams: int
    consumers: int
    at_once: bool
    """All ask at once, and nothing else is measured. Else each asks when the one before has its answer."""
    settle_s: float
    steady_s: float


def requests(plan: CrowdPlan) -> list[sbe.ShmAttachRequest]:
    """Stream by stream, the producer first. A lease's number is its correlation id and its client's id."""
    wanted = [
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
        for number, (stream_id, role) in enumerate(wanted, start=1)
    ]


class Crowd:
    """Everybody who holds a lease or waits for one."""

    def __init__(self, conductor: _native.Conductor, asking: list[sbe.ShmAttachRequest]) -> None:
        self._out = _native.Publication(conductor, _CHANNEL, _CONTROL_STREAM)
        # Tethered, as the driver's: an answer that is lost would only mean another question.
        self._in = _native.Subscription(conductor, f"{_CHANNEL}?tether=true", _CONTROL_STREAM)
        self._asking = {request.correlation_id: request for request in asking}
        # All wait equally long, so the next one is always in front.
        self._keepalives: deque[tuple[int, bytes]] = deque()

    def wait_connected(self) -> None:
        deadline = clock() + _PATIENCE_NS
        while not (self._out.is_connected and self._in.is_connected):
            _check(deadline, "the control stream")
            time.sleep(_ROUND_S)

    def one_by_one(self) -> list[int]:
        """Nanoseconds from each question to its answer."""
        taken = []
        for number, request in list(self._asking.items()):
            message, began = request.encode(), clock()
            self._send(message)
            while number in self._asking:
                self.hear()
                _check(began + _PATIENCE_NS, f"an answer to attach {number}")
            taken.append(clock() - began)
            self.keep_alive()
        return taken

    def all_at_once(self) -> int:
        """Nanoseconds from the first question to the last answer."""
        messages = [request.encode() for request in self._asking.values()]
        began = clock()
        for message in messages:
            self._send(message)
        while self._asking:
            self.hear()
            self.keep_alive()
            _check(began + _PATIENCE_NS, f"{len(self._asking)} answers")
        return clock() - began

    def spread(self) -> None:
        """From now on keepalives come evenly, as those of clients that know nothing of each other."""
        now, count = clock(), len(self._keepalives)
        self._keepalives = deque(
            (now + KEEPALIVE_NS * place // count, message)
            for place, (_, message) in enumerate(self._keepalives)
        )

    def stay(self, until: int) -> None:
        while clock() < until:
            self.keep_alive()
            self.hear()
            time.sleep(_ROUND_S)

    def keep_alive(self) -> None:
        now = clock()
        while self._keepalives and self._keepalives[0][0] <= now:
            due, message = self._keepalives.popleft()
            self._send(message)
            self._keepalives.append((due + KEEPALIVE_NS, message))

    def _send(self, message: bytes) -> None:
        deadline = clock() + _PATIENCE_NS
        while self._out.offer(message) != "sent":
            # The stream may be full of what we have not read ourselves.
            self.hear()
            _check(deadline, "room on the control stream")

    def hear(self) -> None:
        for message in self._poll():
            _, template_id, schema_id, _ = _HEADER.unpack_from(message)
            match (schema_id, template_id):
                case key if key == _RESPONSE:
                    self._on_response(sbe.ShmAttachResponse.decode(message))
                case key if key in (_REVOKED, _SHUTDOWN):
                    raise SystemExit(f"a lease was lost: {sbe.decode(message)}")

    def _poll(self) -> Iterator[bytes]:
        while messages := self._in.poll(256):
            yield from messages

    def _on_response(self, response: sbe.ShmAttachResponse) -> None:
        if response.code is not sbe.ResponseCode.OK or response.lease_id is None:
            raise SystemExit(f"an attach was refused: {response.error_message}")
        now, request = clock(), self._asking.pop(response.correlation_id)
        keepalive = sbe.ShmLeaseKeepalive(
            lease_id=response.lease_id,
            stream_id=request.stream_id,
            client_id=request.client_id,
            role=request.role,
            client_timestamp_ns=now,
        )
        self._keepalives.append((now + KEEPALIVE_NS, keepalive.encode()))


def _check(deadline: int, what: str) -> None:
    if clock() > deadline:
        raise SystemExit(f"waited for {what} in vain")


def run(plan: CrowdPlan) -> dict[str, Any]:
    with tp.open(
        "standalone",
        aeron_dir=media_driver_dir(plan.directory),
        media_driver="external",
        shm_base_dir=plan.directory,
    ) as context:
        asking = requests(plan)
        crowd = Crowd(context.connection.conductor, asking)
        crowd.wait_connected()
        if plan.at_once:
            return {"at_once_us": crowd.all_at_once() / 1e3 / len(asking)}
        attach_us = np.array(crowd.one_by_one()) / 1e3
        crowd.spread()
        crowd.stay(clock() + int(plan.settle_s * 1e9))
        began, cpu = clock(), cpu_ns(plan.driver_pid)
        crowd.stay(began + int(plan.steady_s * 1e9))
        busy = (cpu_ns(plan.driver_pid) - cpu) / (clock() - began)
        return {
            "attach_us": float(attach_us.mean()),
            "attach_p99_us": float(np.percentile(attach_us, 99)) if len(asking) >= _P99_OF else None,
            "resident_bytes": resident_bytes(plan.driver_pid, plan.directory),
            "descriptors": descriptors(plan.driver_pid),
            "busy_cores": busy,
        }


if __name__ == "__main__":
    obey_the_parent()
    say(json.dumps(run(CrowdPlan.from_json(sys.argv[1]))))
