"""Numbers, durations and times as people read them."""

from __future__ import annotations

from tensorpool.units import (
    format_bytes,
    format_count,
    format_number,
    format_precise_duration,
    format_time_utc,
)


def test_numbers_have_at_most_three_figures() -> None:
    numbers = (0, 0.256, 59.94, 940, 9_400, 12_345, 1_250_000, -2e9, 3e12)
    texts = ["0", "0.26", "59.9", "940", "9400", "12.3 k", "1.25 M", "-2 G", "3 T"]
    assert [format_number(number) for number in numbers] == texts
    assert format_count(1_234_567.0) == "1,234,567"


def test_sizes_reach_the_largest_unit() -> None:
    assert [format_bytes(size) for size in (0, 512, 1536, 3 << 30, 5 << 50)] == [
        "0 B", "512 B", "1.5 KiB", "3 GiB", "5 PiB",
    ]  # fmt: skip


def test_precise_durations_have_three_figures_or_two_units() -> None:
    assert [format_precise_duration(ns) for ns in (0, 850, 12_500_000, 90 * 10**9)] == [
        "0 s", "850 ns", "12.5 ms", "90 s",
    ]  # fmt: skip
    assert [format_precise_duration(s * 10**9) for s in (125, 120, 3_600, 3_660, 90_000, 86_400)] == [
        "2 min 5 s", "2 min", "1 h", "1 h 1 min", "1 d 1 h", "1 d",
    ]  # fmt: skip


def test_times_are_utc_up_to_the_last_nanosecond() -> None:
    assert format_time_utc(1_772_366_400_123_000_000, with_ms=True) == "2026-03-01 12:00:00.123"
    assert format_time_utc(1_772_366_400_123_000_000, with_date=False) == "12:00:00"
    assert format_time_utc(2**63 - 1)[:4] == "2262"
