"""A system of a thousand streams with four consumers each, as far as its words go; and who listens to it."""

from __future__ import annotations

import os
import resource
import time
from typing import Any

import tensorpool as tp
from tensorpool import _native
from tensorpool.runtime.runner import Runner
from tensorpool.sbe.wire import (
    ClockDomain,
    ConsumerHello,
    Mode,
    PayloadPool,
    QosConsumer,
    QosProducer,
    ShmPoolAnnounce,
)
from tensorpool.supervisor.agent import SupervisorAgent
from tensorpool.supervisor.config import Rule, SupervisorSettings
from tests.remote import Background

FIRST = 100_000


class Crowd:
    """Speaks for all of them, once a second, evenly spread."""

    def speak(self, options: dict[str, Any], streams: int, consumers: int) -> None:
        self.context = tp.open("standalone", media_driver="external", **options)
        ids = self.context.stream_ids
        self.voices = {
            place: _native.Publication(self.context._conductor, "aeron:ipc", place)
            for place in (ids.announce, ids.qos, ids.control)
        }
        while not all(voice.is_ready for voice in self.voices.values()):
            time.sleep(0.001)
        self.sent = 0

        def loop(stop: Any) -> None:
            second = 0
            while not stop.is_set():
                began = time.monotonic()
                for part in range(20):
                    for stream in range(part, streams, 20):
                        self._say(FIRST + stream, consumers, second)
                    left = began + (part + 1) / 20 - time.monotonic()
                    if left > 0:
                        time.sleep(left)
                second += 1

        self.talk = Background(loop)

    def _say(self, stream_id: int, consumers: int, second: int) -> None:
        ids = self.context.stream_ids
        pool = PayloadPool(pool_id=1, region_uri="", pool_nslots=8, stride_bytes=1 << 20)
        announce = ShmPoolAnnounce(
            stream_id=stream_id,
            producer_id=stream_id,
            epoch=1,
            announce_timestamp_ns=time.monotonic_ns(),
            announce_clock_domain=ClockDomain.MONOTONIC,
            layout_version=1,
            header_nslots=8,
            header_slot_bytes=256,
            payload_pools=(pool,),
        )
        self._send(ids.announce, announce)
        current = 100 * second
        report = QosProducer(stream_id=stream_id, producer_id=stream_id, epoch=1, current_seq=current)
        self._send(ids.qos, report)
        for number in range(1, consumers + 1):
            qos = QosConsumer(
                stream_id=stream_id,
                consumer_id=number,
                epoch=1,
                last_seq_seen=current,
                drops_gap=second,
                drops_late=0,
                mode=Mode.STREAM,
            )
            self._send(ids.qos, qos)
            hello = ConsumerHello(
                stream_id=stream_id,
                consumer_id=number,
                supports_shm=True,
                supports_progress=False,
                mode=Mode.STREAM,
                expected_layout_version=1,
            )
            self._send(ids.control, hello)

    def _send(self, place: int, message: Any) -> None:
        # Aeron is slow for nobody here: what is not taken is said again a second later.
        self.voices[place].offer(message.encode())
        self.sent += 1

    def count(self) -> int:
        return self.sent

    def close(self) -> None:
        self.talk.stop()
        self.context.close()


class Listener:
    """A supervisor with a few rules, and what it costs."""

    def run(self, options: dict[str, Any]) -> None:
        self.context = tp.open("standalone", media_driver="external", **options)
        rules = (
            Rule(name="drops", when="drops", above=100.0, then="limit", max_rate_hz=5),
            Rule(name="behind", when="backlog", above=1000.0, then="flag"),
        )
        self.agent = SupervisorAgent(self.context, settings=SupervisorSettings(rules=rules))
        self.runner = Runner(self.agent)
        self.runner.start()

    def standing(self) -> dict[str, Any]:
        latest = self.agent.latest
        usage = resource.getrusage(resource.RUSAGE_SELF)
        with open("/proc/self/statm", encoding="ascii") as statm:
            resident = int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")
        return {
            "streams": len(latest.streams),
            "consumers": sum(len(one.consumers) for one in latest.streams),
            "unheard": dict(latest.unheard),
            "cpu_s": usage.ru_utime + usage.ru_stime,
            "wall_s": time.monotonic(),
            "bytes": resident,
            "heard": self.agent.counters.snapshot()["heard"],
        }

    def close(self) -> None:
        self.runner.close()
        self.context.close()
