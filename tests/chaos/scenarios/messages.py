"""Mutated messages on every stream: bits flipped, bytes cut, numbers at their limits, pure noise."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import tensorpool as tp
from tensorpool import _native
from tests.chaos.stage import Stage
from tests.integration.recovery.malformed_sender import messages

SHARE = 2.0
_EDGES = (0, 1, 0x7F, 0xFF)
_POOL, _BURST, _NEW = 10_000, 500, 50


def run(stage: Stage) -> None:
    """Sends mutated messages beside a running system, which must neither stop nor believe them."""
    stage.start("producer", hz=300)
    stage.start("consumer")
    stage.start("consumer")
    stage.checker.expect(stage.frames_flow(), "no frames flow before the first message")
    stage.restart_clock()
    with tp.open(**{**stage.options, "mode": "standalone"}) as context:
        ids = context.stream_ids
        streams = {
            "control": ids.control, "announce": ids.announce, "descriptor": ids.descriptor, "qos": ids.qos,
            "metadata": ids.metadata,
        }  # fmt: skip
        publications = {
            name: _native.Publication(context.connection.conductor, "aeron:ipc", stream)
            for name, stream in streams.items()
        }
        mutated = mutations(stage.rng, stage.stream_id)
        # Making a message takes longer than sending it: each is sent many times, beside ever new ones.
        pool = list(itertools.islice(mutated, _POOL))
        while stage.has_time:
            for name, publication in publications.items():
                at = stage.rng.randrange(_POOL - _BURST)
                sent = sum(publication.offer(message) == "sent" for message in pool[at : at + _BURST])
                stage.checker.count(f"mutated messages on {name}", sent)
            for message in itertools.islice(mutated, _NEW):
                pool[stage.rng.randrange(_POOL)] = message
        for publication in publications.values():
            publication.close()
    stage.checker.expect(stage.frames_flow(), "no frames flow after the last message")


def mutations(rng: random.Random, stream_id: int) -> Iterator[bytes]:
    """Messages of every kind with a few changes each."""
    kinds = [messages(kind, rng, stream_id) for kind in ("noise", "damaged", "nonsense")]
    while True:
        message = bytearray(next(rng.choice(kinds)))
        for _ in range(rng.randrange(4)):
            if message:
                at = rng.randrange(len(message))
                message[at] = rng.choice((*_EDGES, rng.randrange(256)))
        yield bytes(message[: rng.randrange(len(message) + 1)] if rng.random() < 0.2 else message)[:4000]
