"""Options of the Spark source: one table, and errors that say what to write instead."""

from __future__ import annotations

import pytest

from tensorpool.errors import ConfigError
from tensorpool.spark.offsets import Position
from tensorpool.spark.options import READ, STREAM, STREAM_WRITE, TABLE, WRITE, Options


def test_values_are_read_whatever_the_case_of_their_names() -> None:
    made = Options(
        {"PATH": "/r", "MaxBytesPerTrigger": "2MiB", "includegaps": "TRUE", "streams": "3, 1"}, STREAM
    )
    assert (made.path, made["maxBytesPerTrigger"], made["includeGaps"]) == ("/r", 2 << 20, True)
    assert made["streams"] == (1, 3)
    assert (made["failOnDataLoss"], made.payload) == (True, "ref")


@pytest.mark.parametrize(
    ("given", "use", "words"),
    [
        ({"path": "/r", "strems": "1"}, READ, "no option strems; did you mean streams?"),
        ({"path": "/r", "zzz": "1"}, READ, "there are path, mode, streams"),
        (
            {"path": "/r", "endingOffsets": "latest"},
            STREAM,
            "endingOffsets is not for readStream, but for read",
        ),
        ({"path": "/r", "maxRowsPerTrigger": "0"}, STREAM, "a number from 1 on"),
        ({"path": "/r", "maxBytesPerTrigger": "4 bananas"}, STREAM, "maxBytesPerTrigger"),
        ({"path": "/r", "payload": "copy"}, READ, "use ref or inline or none"),
        ({"path": "/r", "startingTimestamp": "2026-01-01"}, READ, "a time with a zone"),
        ({"path": "/r", "startingOffsets": '{"1": {"epoch": 1}}'}, READ, "use earliest, latest or"),
        ({"path": "/r", "startingOffsets": "latest", "startingTimestamp": "5"}, READ, "leave one out"),
        ({"path": "/r", "startingTimestamp": "5", "endingTimestamp": "5"}, READ, "nothing lies between"),
        ({"path": "/r", "streams": "one"}, READ, "a stream id is a number"),
        ({}, READ, "option path is missing"),
        ({"mode": "live", "streams": "1"}, READ, "use spark.readStream"),
        ({"mode": "live"}, STREAM, "needs option streams"),
        ({"mode": "live", "streams": "1", "payload": "ref"}, STREAM, "payload inline or none"),
        ({"path": "/r", "includeGaps": "true"}, WRITE, "includeGaps is not for write"),
        ({"path": "/r", "busyTimeout": "soon"}, STREAM_WRITE, "busyTimeout"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, str], use: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Options(given, use)
    assert words in str(caught.value)


def test_offsets_are_places_or_words() -> None:
    made = Options({"path": "/r", "startingOffsets": '{"7": {"epoch": "2", "seq": 5}, "8": "latest"}'}, READ)
    assert made["startingOffsets"] == {7: Position(2, 5), 8: "latest"}


def test_times_are_nanoseconds() -> None:
    made = Options(
        {"path": "/r", "startingTimestamp": "1970-01-01T00:00:01.5+00:00", "endingTimestamp": "2000000001"},
        READ,
    )
    assert (made["startingTimestamp"], made["endingTimestamp"]) == (1_500_000_000, 2_000_000_001)


def test_option_names_are_unique() -> None:
    assert len({option.name.lower() for option in TABLE}) == len(TABLE)
