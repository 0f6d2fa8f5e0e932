"""The options of a replay, and the pools and slots of its producers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tensorpool import sbe
from tensorpool.errors import ConfigError
from tensorpool.recording.manifest import RECORD
from tensorpool.replayer.options import ReplayOptions, parse_speed
from tensorpool.replayer.stream import DEFAULT_NSLOTS, pools_for, slots_for, stride_for


@pytest.mark.parametrize(
    ("invalid", "reason"),
    [
        ({"speed": 0}, "use a number"),
        ({"speed": "fast"}, "or 'max'"),
        ({"speed": -1}, "use a number"),
        ({"rate_hz": 0}, "frames per second"),
        ({"rate_hz": 10, "speed": 2}, "give one of them"),
        ({"max_pause": -1}, "max_pause"),
        ({"wait": 1e9}, "wait"),
        ({"time_base": "sun"}, "'receive'"),
        ({"mapping": {1: 5, 2: 5}}, "1=5, 2=5"),
        ({"streams": [1, 5], "mapping": {1: 5}}, "into one"),
    ],
)
def test_invalid_options_are_refused_with_a_reason(invalid: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        ReplayOptions(**invalid)


def test_mapping_may_swap_streams() -> None:
    options = ReplayOptions(streams=[1, 2, 3], mapping={1: 2, 2: 1})
    assert [options.target(stream_id) for stream_id in (1, 2, 3)] == [2, 1, 3]


def test_checksums_are_compared_unless_speed_is_max() -> None:
    assert ReplayOptions().checks_payloads
    assert ReplayOptions(speed=100).checks_payloads
    assert not ReplayOptions(speed="max").checks_payloads
    assert ReplayOptions(speed="max", check=True).checks_payloads
    assert not ReplayOptions(check=False).checks_payloads
    assert (parse_speed("max"), parse_speed(2)) == (None, 2.0)


def announce(nslots: int, *strides: int) -> sbe.ShmPoolAnnounce:
    pools = tuple(
        sbe.PayloadPool(pool_id=number, pool_nslots=nslots, stride_bytes=stride)
        for number, stride in enumerate(strides)
    )
    return sbe.ShmPoolAnnounce(
        stream_id=1, producer_id=1, epoch=1, announce_timestamp_ns=0,
        announce_clock_domain=sbe.ClockDomain.MONOTONIC, layout_version=1, header_nslots=nslots,
        header_slot_bytes=256, payload_pools=pools,
    )  # fmt: skip


def records(*segments: tuple[int, int]) -> np.ndarray:
    table = np.zeros(len(segments), RECORD)
    for number, (rows, nbytes) in enumerate(segments):
        table[number]["rows"], table[number]["payload_bytes"] = rows, nbytes
    return table


def test_pools_follow_the_recorded_layout() -> None:
    assert pools_for(announce(8, 64 << 10, 1 << 20), records(), 100) == [64 << 10, 1 << 20]
    assert pools_for(announce(8, 4096), records(), 5000) == [4096, 8192]
    # Strides of other implementations need not be powers of two.
    assert pools_for(announce(8, 5000), records(), 5000) == [8192]


def test_pools_without_a_layout_follow_the_known_frames() -> None:
    assert pools_for(None, records(), 0) == [64]
    assert pools_for(None, records((0, 0), (10, 10_000), (10, 40_000)), 100) == [4096]
    assert [stride_for(size) for size in (0, 64, 65, 640 << 10)] == [64, 64, 128, 1 << 20]


def test_slots_follow_the_recorded_layout_unless_given() -> None:
    assert slots_for(announce(64, 4096), None) == 64
    assert slots_for(announce(63, 4096), None) == DEFAULT_NSLOTS
    assert slots_for(None, None) == DEFAULT_NSLOTS
    assert slots_for(announce(64, 4096), 8) == 8
