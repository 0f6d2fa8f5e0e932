"""Sample snapshots of a system that has one of everything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorpool.monitor.snapshot import (
    BridgeView,
    CollisionView,
    ConsumerView,
    DriverView,
    LatencyView,
    LeaseView,
    LedgerView,
    MappingView,
    MismatchView,
    NoticeView,
    PoolView,
    ProducerView,
    RecordedView,
    RecorderView,
    ServiceView,
    Snapshot,
    StreamState,
    StreamView,
)


def latency(p99_ms: float) -> LatencyView:
    p99 = round(p99_ms * 1e6)
    return LatencyView(100, p99 // 4, p99, p99 * 2)


def consumer(
    stream_id: int, number: int, dropped: Mapping[str, int] | None = None, **more: Any
) -> ConsumerView:
    counts = dict(dropped or {})
    values: dict[str, Any] = {
        "epoch": 7,
        "last_seq": 990,
        "mode": "stream",
        "report_age_ns": 300_000_000,
        "rate_hz": 29.9,
        "drops_gap": counts.get("gap", 0),
        "drops_late": counts.get("late", 0),
        "dropped": counts,
        "dropped_per_s": float(bool(counts)) * 2.5,
        "backlog": 3,
        "received": 900,
        "span": 990,
        "latency": latency(0.4),
        "pid": 4000 + number,
    }
    return ConsumerView(stream_id=stream_id, consumer_id=number, **(values | more))


def producer(number: int = 77, **more: Any) -> ProducerView:
    values: dict[str, Any] = {
        "epoch": 7,
        "current_seq": 993,
        "watermark": 3,
        "rate_hz": 30.0,
        "bytes_per_s": 31.5e6,
        "report_age_ns": 200_000_000,
        "quiet_ns": 20_000_000,
        "committed": 994,
        "published": 993,
        "unpublished": {"back_pressured": 1},
        "nbytes": 1_043_333_120,
        "pid": 4000,
    }
    return ProducerView(producer_id=number, **(values | more))


def stream(stream_id: int, name: str = "", **more: Any) -> StreamView:
    consumers: tuple[ConsumerView, ...] = more.pop("consumers", ())
    dropped: dict[str, int] = {}
    for reader in consumers:
        for reason, n in reader.dropped.items():
            dropped[reason] = dropped.get(reason, 0) + n
    latencies = [reader.latency for reader in consumers if reader.latency is not None]
    values: dict[str, Any] = {
        "summary": "",
        "tags": (),
        "data_source_id": None,
        "state": StreamState.LIVE,
        "epoch": 7,
        "epochs": 1,
        "layout_version": 1,
        "nslots": 8,
        "pools": (PoolView(0, 1 << 20, 8),),
        "nbytes": 8 << 20,
        "announce_age_ns": 400_000_000,
        "activity_age_ns": 200_000_000,
        "producer": producer(),
        "dropped": dropped,
        "latency": max(latencies, key=lambda latency: latency.p99_ns, default=None),
        "sources": (),
        "derived": (),
    }
    return StreamView(stream_id=stream_id, name=name, consumers=consumers, **(values | more))


def system() -> Snapshot:
    """A complete system: cameras, a detector that reads them, a stale stream, a bridge, a recorder."""
    streams = (
        stream(
            10000,
            "camera-left",
            summary="the left eye",
            tags=("camera", "lab"),
            derived=(10010,),
            consumers=(
                consumer(10000, 501),
                consumer(10000, 502, {"late": 120, "gap": 4}, latency=latency(48.0), backlog=7),
            ),
        ),
        stream(
            10001,
            "camera-right",
            derived=(10010,),
            consumers=(
                consumer(
                    10001,
                    503,
                    {"rate_limited": 700},
                    mode="rate_limited",
                    max_rate_hz=10,
                    rate_hz=10.0,
                    dropped_per_s=0.0,
                ),
            ),
        ),
        stream(
            10010,
            "detections",
            sources=(10000, 10001),
            producer=producer(78, rate_hz=2_412.7, bytes_per_s=9.9e6),
        ),
        stream(
            10020,
            "lidar",
            state=StreamState.QUIET,
            producer=producer(79, rate_hz=0.0, bytes_per_s=0.0, quiet_ns=12_000_000_000),
        ),
        stream(10030, "thermal", state=StreamState.STALE, producer=None, announce_age_ns=9_000_000_000),
        stream(10040, "", state=StreamState.VACANT, producer=None, activity_age_ns=None),
    )
    mapping = MappingView("send", 10000, 20000, True, 7, 993, 1_000_000, 30.0, {"late": 2}, 995, None, True)
    received = MappingView("receive", 30000, 10020, False, None, 40, 4_000, None, {}, 44, 4, False)
    written = RecordedView(10000, 7, 0, 993, 994, 990, {"recorder_backlog": 4})
    return Snapshot(
        now_ns=1_000_000_000_000,
        streams=streams,
        leases=(LeaseView(1298074214633706, 10000, 77, "producer", "granted", 312.0, 2.5, "service:driver"),),
        drivers=(DriverView("service:driver", "lab", "", 300, "ada", 6, 5, 48 << 20, 1 << 30, 500_000_000),),
        bridges=(BridgeView("service:bridge:b1", "b1", 301, (mapping, received), 100_000_000),),
        recorders=(
            RecorderView(
                "service:recorder:r1",
                "r1",
                302,
                "recording",
                "",
                "/data/run-7",
                990,
                {"recorder_backlog": 4},
                30.0,
                31.5e6,
                2 << 20,
                400 << 30,
                (10000,),
                (written,),
                100_000_000,
            ),
        ),
        services=(
            ServiceView("service:driver", "driver", "", 300, 1),
            ServiceView("service:x", "x", "", 9, 1),
        ),
        collisions=(CollisionView("consumer", 10000, 502, 3, 1_000_000),),
        notices=(
            NoticeView(5_000_000_000, "epoch", 10000, "epoch 7"),
            NoticeView(1_000_000_000, "consumer", 10000, "consumer 502 started"),
        ),
        rejected={"malformed": 3},
        ledger=LedgerView(
            {"exact": 6, "waiting": 1, "settling": 0, "mismatch": 1, "gone": 0},
            (MismatchView(10000, "consumer", "502", "3 frames unaccounted for"),),
        ),
    )
