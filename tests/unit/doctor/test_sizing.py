"""The sizing of streams, and `tensorpool doctor sizing`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tensorpool.cli import cli
from tensorpool.context.config import AeronSettings
from tensorpool.doctor import CheckStatus, Needs, Sizing, check_fit, size_stream
from tensorpool.doctor.memory import Space
from tensorpool.doctor.sizing import DESCRIPTOR_BYTES, PER_CONSUMER_TERM_BYTES, available_memory
from tensorpool.driver import DriverSettings
from tensorpool.errors import ConfigError
from tensorpool.runtime.config import Config
from tensorpool.sbe import FrameDescriptor

ROOT = Path(__file__).parents[3]
MIB, GIB = 1 << 20, 1 << 30
SHM = Path("/dev/shm")


def figures(sizing: Sizing) -> dict[str, int]:
    return {figure.name: figure.value for figure in sizing.figures}


def test_sizing_of_a_camera() -> None:
    result = size_stream(Needs(200, 4_000_000, 0.1))
    assert (result.nslots, result.stride_bytes) == (64, 4 * MIB)
    assert figures(result)["header_ring_bytes"] == 5 * 4096
    assert figures(result)["pool_bytes"] == 64 * 4 * MIB + 4096
    assert result.peak_bytes == 2 * result.epoch_bytes
    assert result.figures[0].reckoning == "200 Hz * 0.1 s * 2 = 40; next power of two"


@pytest.mark.parametrize(
    ("rate", "latency", "safety", "nslots"),
    [
        (1, 0.001, 2, 4),
        (10, 0.1, 4, 4),
        (30, 0.1, 2, 8),
        (32, 0.25, 2, 16),
        (33, 0.25, 2, 32),
        (0.1, 30, 4, 16),
    ],
)
def test_slots_are_the_next_power_of_two(rate: float, latency: float, safety: float, nslots: int) -> None:
    assert size_stream(Needs(rate, 64, latency, safety=safety)).nslots == nslots


@pytest.mark.parametrize(
    ("size", "stride"), [(1, 64), (64, 64), (65, 128), (MIB, MIB), (MIB + 1, 2 * MIB), (1 << 31, 1 << 31)]
)
def test_stride_is_the_next_power_of_two_from_64_on(size: int, stride: int) -> None:
    assert size_stream(Needs(1, size, 0.1)).stride_bytes == stride


@given(
    rate=st.floats(0.01, 100_000),
    size=st.integers(1, 64 * MIB),
    latency=st.floats(0.0001, 2),
    consumers=st.integers(0, 200),
    safety=st.floats(1, 4),
)
def test_sizing_is_sufficient_and_not_larger_than_needed(
    rate: float, size: int, latency: float, consumers: int, safety: float
) -> None:
    result = size_stream(Needs(rate, size, latency, consumers, safety))
    needed = rate * latency * safety
    assert result.nslots >= needed * (1 - 1e-6)
    assert result.nslots == 4 or result.nslots < 2 * needed + 2
    assert size <= result.stride_bytes < max(65, 2 * size)
    assert result.nslots & (result.nslots - 1) == 0
    # A reader with the longest allowed latency is not yet rested by Aeron.
    assert result.descriptor_term_bytes * 3 // 8 >= rate * latency * DESCRIPTOR_BYTES
    assert result.total_bytes == result.peak_bytes + result.descriptor_log_bytes + result.per_consumer_bytes


@pytest.mark.parametrize(
    ("needs", "text"),
    [
        ({"rate_hz": 0.0}, "rate 0"),
        ({"rate_hz": float("nan")}, "rate nan"),
        ({"latency_s": -1.0}, "latency -1"),
        ({"safety": float("inf")}, "safety inf"),
        ({"frame_bytes": 0}, "0 bytes a frame"),
        ({"frame_bytes": (1 << 31) + 1}, "bytes a frame"),
        ({"consumers": -1}, "-1 consumers"),
    ],
)
def test_invalid_needs_are_rejected(needs: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(text)):
        Needs(**({"rate_hz": 1.0, "frame_bytes": 1, "latency_s": 1.0} | needs))


def test_needs_beyond_the_largest_ring_are_rejected() -> None:
    with pytest.raises(ConfigError, match="split the stream"):
        size_stream(Needs(1_000_000, 64, 1))


def test_needs_beyond_the_longest_term_are_rejected() -> None:
    with pytest.raises(ConfigError, match="longest term"):
        size_stream(Needs(100_000_000, 64, 0.001))


def test_notes_advise_small_rings_for_frames_beyond_the_cache() -> None:
    cache = 32 * MIB
    assert not size_stream(Needs(100, MIB, 0.05), cache_bytes=cache).notes
    (through_memory,) = size_stream(Needs(100, 4 * MIB, 0.1), cache_bytes=cache).notes
    assert "the slots take 128 MiB" in through_memory
    assert "2 to 4 slots are faster, for consumers that finish a frame within 0.02 s" in through_memory
    (no_ring_fits,) = size_stream(Needs(100, 32 * MIB, 0.01), cache_bytes=cache).notes
    assert "larger than half of the last-level cache (32 MiB)" in no_ring_fits
    assert "2 to 4 slots are the fastest" in no_ring_fits
    assert not size_stream(Needs(100, 4 * MIB, 0.1)).notes, "the cache is not known"


def test_notes_name_further_settings() -> None:
    assert not size_stream(Needs(100, 60_000, 0.1)).notes
    (overtaken,) = size_stream(Needs(1000, 60_000, 0.2)).notes
    assert "max_outstanding_seq_gap=512" in overtaken
    (unused,) = size_stream(Needs(100, MIB + 1, 0.1)).notes
    assert "unused" in unused
    assert any("per-consumer stream holds 1024" in note for note in size_stream(Needs(5000, 64, 1)).notes)


@pytest.mark.parametrize(
    ("free", "available", "status", "text"),
    [
        (4 * GIB, None, CheckStatus.OK, "515.8 MiB fit"),
        (4 * GIB, 4 * GIB, CheckStatus.OK, "4 GiB of memory available"),
        (4 * GIB, 256 * MIB, CheckStatus.FAIL, "swaps"),
        (600 * MIB, 4 * GIB, CheckStatus.WARN, "size=8G"),
        (256 * MIB, 4 * GIB, CheckStatus.FAIL, "size=5G"),
    ],
)
def test_sizing_is_compared_with_the_available_memory(
    free: int, available: int | None, status: CheckStatus, text: str
) -> None:
    check = check_fit(size_stream(Needs(200, 4_000_000, 0.1)), SHM, Space(4 * GIB, free), available)
    assert check.status is status, check
    assert text in f"{check.found} {check.meaning} {check.remedy}"
    assert bool(check.remedy) == (status is not CheckStatus.OK)


def test_available_memory() -> None:
    assert available_memory("MemTotal: 8 kB\nMemAvailable:    2048 kB\n") == 2 * MIB
    assert available_memory("MemTotal: 8 kB\n") is None


# --- figures of other packages


def test_descriptor_size_is_that_of_aeron() -> None:
    encoded = len(FrameDescriptor(stream_id=1, epoch=1, seq=1).encode())
    aligned = -(-(encoded + 32) // 32) * 32
    assert aligned == DESCRIPTOR_BYTES


def test_per_consumer_term_is_that_of_the_native_code() -> None:
    sources = (ROOT / "crates" / "dataplane" / "src" / "producer").rglob("*.rs")
    assert any('"term-length=256k"' in source.read_text("utf-8") for source in sources)
    assert PER_CONSUMER_TERM_BYTES == 256 << 10


# --- the command


def sizing(*arguments: str) -> Any:
    return CliRunner().invoke(cli, ["doctor", "sizing", *arguments], terminal_width=80)


def test_sizing_command_prints_the_arithmetic() -> None:
    done = sizing("--rate", "200", "--bytes", "4000000", "--latency", "0.1")
    assert "200 Hz * 0.1 s * 2 = 40" in done.output
    assert "nslots = 64" in done.output


def test_sizing_command_prints_a_valid_configuration(tmp_path: Path) -> None:
    done = sizing("--rate", "20000", "--bytes", "64KiB", "--latency", "0.5", "--consumers", "3", "--json")
    output = json.loads(done.output)
    file = tmp_path / "tensorpool.toml"
    file.write_text(output["config"])
    config = Config.load(DriverSettings, AeronSettings, file=file, environ={})
    (stream,) = config[DriverSettings].streams
    assert (stream.nslots, stream.pools) == (output["nslots"], (output["stride_bytes"],)) == (32768, (65536,))
    assert config[AeronSettings].descriptor_term_bytes == output["descriptor_term_bytes"] == 8 * MIB


def test_sizing_command_fails_if_the_stream_does_not_fit() -> None:
    done = sizing("--rate", "1000", "--bytes", "1GiB", "--latency", "400")
    assert done.exit_code == 1
    assert "do not fit" in done.output


def test_sizing_command_rejects_invalid_arguments() -> None:
    assert sizing("--rate", "fast", "--bytes", "1", "--latency", "1").exit_code == 2
    assert sizing("--rate", "1", "--bytes", "1").exit_code == 2
    assert isinstance(sizing("--rate", "1", "--bytes", "4 apples", "--latency", "1").exception, ConfigError)
