"""Encode and decode times of two messages, compared with `json` and msgpack's pure-Python mode.

All three get the same content: our codecs typed messages, the others plain dicts and lists (so they need not
create typed objects). A ratio above 1 means that our codec is faster.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib import util
from typing import Any

from tensorpool import sbe
from tensorpool.sbe.json_form import to_json

ROUNDS = 5
ROUND_SECONDS = 0.15


def announce() -> sbe.ShmPoolAnnounce:
    """A message with four pools."""
    return sbe.ShmPoolAnnounce(
        stream_id=10000,
        producer_id=7,
        epoch=1_700_000_000_000_000_000,
        announce_timestamp_ns=123_456_789_012,
        announce_clock_domain=sbe.ClockDomain.MONOTONIC,
        layout_version=1,
        header_nslots=8,
        header_slot_bytes=256,
        payload_pools=tuple(_pool(number) for number in range(1, 5)),
        header_region_uri="shm:file?path=/dev/shm/tensorpool-alice/default/10000/1/header.ring",
    )


def response(results: int = 1000) -> sbe.DiscoveryResponse:
    """A message with many results."""
    return sbe.DiscoveryResponse(
        request_id=1,
        status=sbe.DiscoveryStatus.OK,
        results=tuple(_result(number) for number in range(results)),
    )


def _pool(number: int) -> sbe.PayloadPool:
    return sbe.PayloadPool(
        pool_id=number,
        pool_nslots=8,
        stride_bytes=65536 << number,
        region_uri=f"shm:file?path=/dev/shm/tensorpool-alice/default/10000/1/{number}.pool",
    )


def _result(number: int) -> sbe.DiscoveryResult:
    return sbe.DiscoveryResult(
        stream_id=10000 + number,
        producer_id=7,
        epoch=1_700_000_000_000_000_000 + number,
        layout_version=1,
        header_nslots=8,
        header_slot_bytes=256,
        max_dims=8,
        data_source_id=None,
        driver_control_stream_id=1000,
        payload_pools=(_pool(1), _pool(2)),
        tags=(sbe.Tag(tag="camera"), sbe.Tag(tag="lab1")),
        header_region_uri=f"shm:file?path=/dev/shm/tensorpool-alice/default/{10000 + number}/1/header.ring",
        data_source_name=f"camera-{number}",
        driver_instance_id="driver-a",
        driver_control_channel="aeron:ipc",
    )


def microseconds(work: Callable[[], object]) -> float:
    """Median over some rounds of the average time of the work."""
    work()
    started = time.perf_counter()
    work()
    times = max(1, int(ROUND_SECONDS / max(time.perf_counter() - started, 1e-9)))
    rounds = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        for _ in range(times):
            work()
        rounds.append((time.perf_counter() - started) / times)
    return statistics.median(rounds) * 1e6


def pure_msgpack() -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    """The pure-Python packer and unpacker of msgpack, even if its extension is imported."""
    os.environ["MSGPACK_PUREPYTHON"] = "1"
    if util.find_spec("msgpack") is None:
        raise SystemExit("the comparison needs msgpack: pip install msgpack")
    from msgpack.fallback import Packer, Unpacker

    def pack(value: Any) -> bytes:
        return bytes(Packer().pack(value))

    def unpack(data: bytes) -> Any:
        unpacker = Unpacker(None, max_buffer_size=len(data))
        unpacker.feed(data)
        return unpacker.unpack()

    return pack, unpack


def run(json_out: bool = False) -> dict[str, Any]:
    """Measures both messages; prints a table unless `json_out`."""
    pack, unpack = pure_msgpack()
    rows = []
    for name, message in (
        ("ShmPoolAnnounce, 4 pools", announce()),
        ("DiscoveryResponse, 1,000 results", response()),
    ):
        plain = to_json(message)["fields"]
        ours, theirs, text = message.encode(), pack(plain), json.dumps(plain)
        kind = type(message)
        assert kind.decode(ours) == message
        assert unpack(theirs) == plain == json.loads(text)
        rows.append(
            _row(
                f"encode {name}", len(ours), message.encode, partial(pack, plain), partial(json.dumps, plain)
            )
        )
        rows.append(
            _row(
                f"decode {name}",
                len(ours),
                partial(sbe.decode, ours),
                partial(unpack, theirs),
                partial(json.loads, text),
            )
        )
    if not json_out:
        _print(rows)
    return {"benchmark": "sbe_codecs", "rows": rows}


def _row(
    name: str,
    size: int,
    ours: Callable[[], object],
    pure: Callable[[], object],
    text: Callable[[], object],
) -> dict[str, Any]:
    ours_us, pure_us, json_us = microseconds(ours), microseconds(pure), microseconds(text)
    return {
        "name": name,
        "bytes": size,
        "ours_us": round(ours_us, 2),
        "msgpack_pure_us": round(pure_us, 2),
        "json_us": round(json_us, 2),
        "ratio_msgpack_pure": round(pure_us / ours_us, 2),
        "ratio_json": round(json_us / ours_us, 2),
    }


def _print(rows: list[dict[str, Any]]) -> None:
    print(f"{'':40}{'ours µs':>10}{'msgpack-pure':>14}{'json':>10}{'÷ msgpack':>11}{'÷ json':>8}")
    for row in rows:
        print(
            f"{row['name']:40}{row['ours_us']:>10}{row['msgpack_pure_us']:>14}{row['json_us']:>10}"
            f"{row['ratio_msgpack_pure']:>11}{row['ratio_json']:>8}"
        )


if __name__ == "__main__":
    outcome = run(json_out="--json" in sys.argv)
    if "--json" in sys.argv:
        print(json.dumps(outcome, indent=2))
