"""A process that sends noise and invalid requests on the driver's control stream."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import tensorpool as tp
from tensorpool import _native
from tensorpool.sbe import driver
from tensorpool.sbe.message import Message
from tensorpool.sbe.wire import ResponseCode
from tests.remote_process import Background

FOREIGN = 0xFFFF_FF00


class MalformedSender:
    """A sender of malformed messages, without a lease."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.context = tp.open(**{**options, "mode": "standalone"})
        control = self.context.stream_ids.control
        self.publication = _native.Publication(self.context.connection.conductor, "aeron:ipc", control)
        self.sent: Counter[str] = Counter()
        self.flooding: Background | None = None

    def is_connected(self) -> bool:
        """Whether the control stream has a subscriber."""
        return self.publication.is_connected

    def send(self, kind: str, seed: int, count: int, stream_id: int) -> None:
        """Sends `count` messages of a kind. The same seed gives the same messages."""
        for message in itertools.islice(messages(kind, random.Random(seed), stream_id), count):
            deadline = time.monotonic() + 60
            while (outcome := self.publication.offer(message)) != "sent":
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the control stream accepts no message: {outcome}")
                time.sleep(0.0005)
            self.sent[kind] += 1

    def flood(self, seed: int, stream_id: int) -> None:
        """Sends noise at full speed until `stop`, so that other senders are back-pressured."""
        noise = list(itertools.islice(messages("noise", random.Random(seed), stream_id), 1000))

        def send_noise(stop: threading.Event) -> None:
            for message in itertools.cycle(noise):
                self.sent[self.publication.offer(message)] += 1
                if stop.is_set():
                    return

        self.flooding = Background(send_noise)

    def stop(self) -> dict[str, int]:
        """Stops the flood; returns the outcomes."""
        if self.flooding is not None:
            self.flooding.stop()
        return self.sent


def messages(kind: str, rng: random.Random, stream_id: int) -> Iterator[bytes]:
    """Endless messages of a kind."""
    while True:
        match kind:
            case "noise":
                yield rng.randbytes(rng.choice((0, 1, 7, 8, 9, 32, 200, 3000)))
            case "damaged":
                yield damaged(request(rng, stream_id).encode(), rng)
            case "nonsense":
                yield request(rng, stream_id).encode()
            case "greedy":
                yield attach(rng, stream_id + rng.randrange(1, 200), rng.choice(list(driver.Role))).encode()
            case "producer":
                yield attach(rng, stream_id, driver.Role.PRODUCER).encode()


def damaged(message: bytes, rng: random.Random) -> bytes:
    """Truncates a message, extends it, or changes bytes; the template and the schema stay."""
    match rng.randrange(3):
        case 0:
            return message[: rng.randrange(8, len(message))]
        case 1:
            return message + rng.randbytes(rng.randrange(1, 100))
    changed = bytearray(message)
    for _ in range(rng.randrange(1, 8)):
        # A changed template or schema could forge a message of the driver.
        changed[rng.choice((0, 1, 6, 7, *range(8, len(message))))] = rng.randrange(256)
    return bytes(changed)


def request(rng: random.Random, stream_id: int) -> Message:
    """A well-formed request that the driver cannot grant."""
    number, role = rng.getrandbits(62), rng.choice(list(driver.Role))
    client: dict[str, Any] = {"stream_id": stream_id, "client_id": FOREIGN + rng.randrange(8), "role": role}
    match rng.randrange(5):
        case 0:
            client |= rng.choice(({"client_id": 0}, {"max_dims": 99}, {"expected_layout_version": 7}))
            existing = driver.PublishMode.REQUIRE_EXISTING
            return driver.ShmAttachRequest(correlation_id=number, publish_mode=existing, **client)
        case 1:
            return driver.ShmDetachRequest(correlation_id=number, lease_id=number, **client)
        case 2:
            return driver.ShmLeaseKeepalive(lease_id=number, client_timestamp_ns=number, **client)
        case 3:
            return driver.ShmAttachResponse(correlation_id=number, code=ResponseCode.REJECTED)
        case _:
            return driver.ShmDriverShutdownRequest(
                correlation_id=number,
                reason=driver.ShutdownReason.ADMIN,
                token="guess",
                error_message="",
            )


def attach(rng: random.Random, stream_id: int, role: driver.Role) -> Message:
    """A valid attach request for a lease that is never used."""
    client_id = rng.randrange(1, 1 << 31)
    return driver.ShmAttachRequest(
        correlation_id=client_id << 32 | 1,
        stream_id=stream_id,
        client_id=client_id,
        role=role,
        publish_mode=driver.PublishMode.EXISTING_OR_CREATE,
    )
