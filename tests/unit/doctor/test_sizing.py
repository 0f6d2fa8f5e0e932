"""What `tensorpool doctor sizing` reckons, and what it refuses."""

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
from tensorpool.doctor import Needs, Sizing, Status, check_fit, size_stream
from tensorpool.doctor.memory import Space
from tensorpool.doctor.sizing import DESCRIPTOR_BYTES, OWN_STREAM_TERM_BYTES, available_memory
from tensorpool.driver import DriverSettings
from tensorpool.errors import ConfigError
from tensorpool.runtime.config import Config
from tensorpool.sbe import FrameDescriptor

ROOT = Path(__file__).parents[3]
MIB, GIB = 1 << 20, 1 << 30
SHM = Path("/dev/shm")


def figures(sizing: Sizing) -> dict[str, int]:
    return {one.name: one.value for one in sizing.figures}


def test_a_camera() -> None:
    found = size_stream(Needs(200, 4_000_000, 0.1))
    assert (found.nslots, found.stride_bytes) == (64, 4 * MIB)
    assert figures(found)["header_ring_bytes"] == 5 * 4096
    assert figures(found)["pool_bytes"] == 64 * 4 * MIB + 4096
    assert found.peak_bytes == 2 * found.epoch_bytes
    assert found.figures[0].reckoning == "200 Hz * 0.1 s * 2 = 40; next power of two"


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
def test_the_stride_is_the_next_power_of_two_from_64_on(size: int, stride: int) -> None:
    assert size_stream(Needs(1, size, 0.1)).stride_bytes == stride


@given(
    rate=st.floats(0.01, 100_000),
    size=st.integers(1, 64 * MIB),
    latency=st.floats(0.0001, 2),
    consumers=st.integers(0, 200),
    safety=st.floats(1, 4),
)
def test_what_is_recommended_is_enough_and_no_more_than_it_has_to_be(
    rate: float, size: int, latency: float, consumers: int, safety: float
) -> None:
    found = size_stream(Needs(rate, size, latency, consumers, safety))
    wanted = rate * latency * safety
    assert found.nslots >= wanted * (1 - 1e-6)
    assert found.nslots == 4 or found.nslots < 2 * wanted + 2
    assert size <= found.stride_bytes < max(65, 2 * size)
    assert found.nslots & (found.nslots - 1) == 0
    # A reader that is as late as it may be is not yet where Aeron puts it to rest.
    assert found.descriptor_term_bytes * 3 // 8 >= rate * latency * DESCRIPTOR_BYTES
    assert found.total_bytes == found.peak_bytes + found.descriptor_log_bytes + found.own_streams_bytes


@pytest.mark.parametrize(
    ("needs", "words"),
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
def test_what_makes_no_sense_is_refused(needs: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        Needs(**({"rate_hz": 1.0, "frame_bytes": 1, "latency_s": 1.0} | needs))


def test_what_no_ring_can_hold_is_refused() -> None:
    with pytest.raises(ConfigError, match="split the stream"):
        size_stream(Needs(1_000_000, 64, 1))


def test_what_no_term_can_hold_is_refused() -> None:
    with pytest.raises(ConfigError, match="longest term"):
        size_stream(Needs(100_000_000, 64, 0.001))


def test_notes_say_what_else_has_to_change() -> None:
    assert not size_stream(Needs(100, 60_000, 0.1)).notes
    (overtaken,) = size_stream(Needs(1000, 60_000, 0.2)).notes
    assert "max_outstanding_seq_gap=512" in overtaken
    (unused,) = size_stream(Needs(100, MIB + 1, 0.1)).notes
    assert "unused" in unused
    assert any("own stream holds 4096" in one for one in size_stream(Needs(5000, 64, 1)).notes)


@pytest.mark.parametrize(
    ("free", "available", "status", "words"),
    [
        (4 * GIB, None, Status.OK, "518 MiB fit"),
        (4 * GIB, 4 * GIB, Status.OK, "4.0 GiB of memory available"),
        (4 * GIB, 256 * MIB, Status.FAIL, "swaps"),
        (600 * MIB, 4 * GIB, Status.WARN, "size=8G"),
        (256 * MIB, 4 * GIB, Status.FAIL, "size=5G"),
    ],
)
def test_it_is_held_against_what_there_is(
    free: int, available: int | None, status: Status, words: str
) -> None:
    check = check_fit(size_stream(Needs(200, 4_000_000, 0.1)), SHM, Space(4 * GIB, free), available)
    assert check.status is status, check
    assert words in f"{check.found} {check.meaning} {check.remedy}"
    assert bool(check.remedy) == (status is not Status.OK)


def test_available_memory() -> None:
    assert available_memory("MemTotal: 8 kB\nMemAvailable:    2048 kB\n") == 2 * MIB
    assert available_memory("MemTotal: 8 kB\n") is None


# --- figures that are somebody else's


def test_a_descriptor_takes_what_it_takes_in_aeron() -> None:
    encoded = len(FrameDescriptor(stream_id=1, epoch=1, seq=1).encode())
    aligned = -(-(encoded + 32) // 32) * 32
    assert aligned == DESCRIPTOR_BYTES


def test_a_stream_of_ones_own_has_the_term_of_the_native_code() -> None:
    lanes = (ROOT / "crates/dataplane/src/producer/per_consumer.rs").read_text("utf-8")
    assert '"term-length=1m"' in lanes
    assert OWN_STREAM_TERM_BYTES == MIB


# --- the command


def sizing(*arguments: str) -> Any:
    return CliRunner().invoke(cli, ["doctor", "sizing", *arguments], terminal_width=80)


def test_the_command_shows_the_arithmetic() -> None:
    done = sizing("--rate", "200", "--bytes", "4000000", "--latency", "0.1")
    assert "200 Hz * 0.1 s * 2 = 40" in done.output
    assert "nslots = 64" in done.output


def test_what_the_command_prints_for_a_configuration_is_one(tmp_path: Path) -> None:
    done = sizing("--rate", "20000", "--bytes", "64KiB", "--latency", "0.5", "--consumers", "3", "--json")
    told = json.loads(done.output)
    file = tmp_path / "tensorpool.toml"
    file.write_text(told["config"])
    config = Config.load(DriverSettings, AeronSettings, file=file, environ={})
    (stream,) = config[DriverSettings].streams
    assert (stream.nslots, stream.pools) == (told["nslots"], (told["stride_bytes"],)) == (32768, (65536,))
    assert config[AeronSettings].descriptor_term_bytes == told["descriptor_term_bytes"] == 8 * MIB


def test_what_does_not_fit_fails() -> None:
    done = sizing("--rate", "1000", "--bytes", "1GiB", "--latency", "400")
    assert done.exit_code == 1
    assert "do not fit" in done.output


def test_bad_arguments_are_misuse() -> None:
    assert sizing("--rate", "fast", "--bytes", "1", "--latency", "1").exit_code == 2
    assert sizing("--rate", "1", "--bytes", "1").exit_code == 2
    assert isinstance(sizing("--rate", "1", "--bytes", "4 apples", "--latency", "1").exception, ConfigError)
