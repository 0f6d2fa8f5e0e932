"""Options of the Spark source: parsing, defaults, and errors with a hint."""

from __future__ import annotations

import pytest

from tensorpool.errors import ConfigError
from tensorpool.spark.offsets import Position
from tensorpool.spark.options import READ, STREAM, STREAM_WRITE, TABLE, WRITE, Options, spark_schema
from tensorpool.spark.source import own_options, with_options, with_table_options


def test_option_names_ignore_case() -> None:
    parsed = Options(
        {"PATH": "/r", "MaxBytesPerTrigger": "2MiB", "includegaps": "TRUE", "streams": "3, 1"}, STREAM
    )
    assert (parsed.path, parsed["maxBytesPerTrigger"], parsed["includeGaps"]) == ("/r", 2 << 20, True)
    assert parsed["streams"] == (1, 3)
    assert (parsed["failOnDataLoss"], parsed.payload) == (True, "ref")


@pytest.mark.parametrize(
    ("given", "use", "message"),
    [
        ({"path": "/r", "strems": "1"}, READ, "no option strems; did you mean streams?"),
        ({"path": "/r", "zzz": "1"}, READ, "the options are path, mode, streams"),
        (
            {"path": "/r", "endingOffsets": "latest"},
            STREAM,
            "endingOffsets is for read, not for readStream",
        ),
        ({"path": "/r", "maxRowsPerTrigger": "0"}, STREAM, "a whole number, at least 1"),
        ({"path": "/r", "maxBytesPerTrigger": "4 bananas"}, STREAM, "maxBytesPerTrigger"),
        ({"path": "/r", "payload": "copy"}, READ, "use ref or inline or none"),
        ({"path": "/r", "startingTimestamp": "2026-01-01"}, READ, "a time with a zone"),
        ({"path": "/r", "startingOffsets": '{"1": {"epoch": 1}}'}, READ, "use earliest, latest or"),
        ({"path": "/r", "startingOffsets": "latest", "startingTimestamp": "5"}, READ, "give only one"),
        ({"path": "/r", "startingTimestamp": "5", "endingTimestamp": "5"}, READ, "the range is empty"),
        ({"path": "file://elsewhere/rec"}, READ, "is not the URI of a local path: use file:///path"),
        ({}, READ, "option path is missing"),
        ({"mode": "live", "streams": "1"}, READ, "use spark.readStream"),
        ({"mode": "live"}, STREAM, "needs option streams"),
        ({"mode": "live", "streams": "1", "payload": "ref"}, STREAM, "payload inline or none"),
        ({"path": "/r", "includeGaps": "true"}, WRITE, "includeGaps is for read, readStream, not for write"),
        ({"path": "/r", "busyTimeout": "soon"}, STREAM_WRITE, "busyTimeout"),
    ],
)
def test_invalid_option_is_rejected_with_a_hint(given: dict[str, str], use: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Options(given, use)
    assert message in str(caught.value)


def test_offsets_option_has_positions_or_names() -> None:
    parsed = Options(
        {"path": "/r", "startingOffsets": '{"7": {"epoch": "2", "seq": 5}, "8": "latest"}'}, READ
    )
    assert parsed["startingOffsets"] == {7: Position(2, 5), 8: "latest"}


def test_time_options_are_nanoseconds() -> None:
    parsed = Options(
        {"path": "/r", "startingTimestamp": "1970-01-01T00:00:01.5+00:00", "endingTimestamp": "2000000001"},
        READ,
    )
    assert (parsed["startingTimestamp"], parsed["endingTimestamp"]) == (1_500_000_000, 2_000_000_001)


def test_option_names_are_unique() -> None:
    assert len({option.name.lower() for option in TABLE}) == len(TABLE)


@pytest.mark.parametrize("use", [READ, STREAM, WRITE, STREAM_WRITE])
def test_file_uri_is_a_local_path(use: str) -> None:
    assert Options({"path": "file:///data/my%20recording"}, use).path == "/data/my recording"


def test_properties_of_a_catalog_table_are_no_options() -> None:
    properties = {"owner": "me", "provider": "tensorpool", "comment": "x", "location": "file:/data/rec"}
    options = Options(own_options({**properties, "payload": "none"}), READ)
    assert (options.path, options.payload) == ("/data/rec", "none")
    assert Options(own_options({**properties, "path": "/other"}), READ).path == "/other"
    # A catalog passes the options of a table with a prefix, and the user's properties beside them.
    prefixed = {**properties, "option.path": "/prefixed", "option.payload": "none", "team": "vision"}
    options = Options(own_options(prefixed), READ)
    assert (options.path, options.payload) == ("/prefixed", "none")


def test_schema_of_a_catalog_table_carries_its_options() -> None:
    plain = spark_schema(Options({"path": "/data/rec"}, READ))
    schema = with_options(plain, {"path": "/data/rec", "streams": "10"})
    assert schema.names == plain.names
    assert with_table_options({}, schema) == {"path": "/data/rec", "streams": "10"}
    given = {"Streams": "11", "payload": "none"}
    assert with_table_options(given, schema) == {"path": "/data/rec", "streams": "11", "payload": "none"}
    assert with_table_options({"path": "/other"}, schema) == {"path": "/other"}
    assert with_table_options({}, plain) == {}
