"""Settings as TOML text: printed settings read back, and every key has its line number."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorpool.errors import ConfigError
from tensorpool.runtime import LogSettings
from tensorpool.runtime.config import (
    Config,
    IdRange,
    Origin,
    Override,
    Secret,
    duration_literal,
    parse_duration,
    parse_size,
    size_literal,
)
from tensorpool.runtime.config.config import render_tables
from tensorpool.runtime.config.spec import spec_of
from tensorpool.runtime.config.toml_text import line_numbers, literal
from tests.unit.runtime.sample import LimitSettings, SampleSettings, Shade, StreamSettings

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
IDS = st.integers(0, 2**32 - 1)


def ranges() -> st.SearchStrategy[IdRange]:
    return st.tuples(IDS, IDS).map(lambda pair: IdRange(min(pair), max(pair)))


def streams() -> st.SearchStrategy[StreamSettings]:
    return st.builds(
        StreamSettings,
        stream_id=st.integers(1, 2**40),
        name=TEXT,
        nslots=st.sampled_from([1, 2, 1024]),
        pools_bytes=st.lists(st.integers(0, 2**50)).map(tuple),
    )


def samples() -> st.SearchStrategy[SampleSettings]:
    limits = st.builds(LimitSettings, leases=st.integers(1, 1024), total_bytes=st.integers(0, 2**60))
    return st.builds(
        SampleSettings,
        namespace=TEXT,
        period_ns=st.integers(10_000_000, 2**63 - 1),
        ratio=st.floats(0, 1),
        prefault=st.booleans(),
        base=TEXT.filter(lambda text: text and "\0" not in text and not text.startswith("~")).map(Path),
        mode=st.integers(0, 0o7777),
        order=st.sampled_from(["row", "column"]),
        shade=st.sampled_from(Shade),
        ids=st.none(),
        tags=st.lists(TEXT).map(tuple),
        limits=limits,
        streams=st.lists(streams(), max_size=3).map(tuple),
    )


@given(sample=samples())
def test_printed_settings_read_back_unchanged(sample):
    printed = render_tables(spec_of(SampleSettings), sample, ("sample",), {})
    again = Config.load(SampleSettings, tables=tomllib.loads(printed), environ={})
    assert again[SampleSettings] == sample


@given(sample=samples())
def test_configuration_printed_twice_is_unchanged(sample):
    printed = render_tables(spec_of(SampleSettings), sample, ("sample",), {})
    first = Config.load(SampleSettings, tables=tomllib.loads(printed), environ={})
    second = Config.load(SampleSettings, tables=tomllib.loads(first.to_toml()), environ={})
    assert second[SampleSettings] == sample
    assert tomllib.loads(second.to_toml()) == tomllib.loads(printed)


@given(ids=ranges())
def test_id_range_reads_back(ids):
    assert IdRange.parse(str(ids)) == ids


@given(ns=st.integers(0, 2**63 - 1))
def test_duration_reads_back(ns):
    assert parse_duration(duration_literal(ns)) == ns


@given(size=st.integers(0, 2**62))
def test_size_reads_back(size):
    assert parse_size(size_literal(size)) == size


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("250ms", 250_000_000),
        ("1.5s", 1_500_000_000),
        ("2 min", 120 * 10**9),
        ("7µs", 7_000),
        ("7us", 7_000),
        ("0", 0),
    ],
)
def test_durations_are_parsed_with_units(text, ns):
    assert parse_duration(text) == ns


@pytest.mark.parametrize("text", ["", "5", "5 parsecs", "-1s", "1e3s", "s", "1,5s", "٣s", 5, "1s 5ms"])
def test_invalid_duration_is_refused(text):
    with pytest.raises(ConfigError):
        parse_duration(text)


@pytest.mark.parametrize(
    ("ns", "text"), [(250_000_000, "250ms"), (90 * 10**9, "90s"), (3600 * 10**9, "1h"), (1, "1ns"), (0, "0s")]
)
def test_durations_are_printed_in_the_largest_whole_unit(ns, text):
    assert duration_literal(ns) == text


def test_id_range_contains_its_ids():
    ids = IdRange.parse("5-7")
    assert (list(ids), len(ids), 7 in ids, 8 in ids, "5" in ids) == ([5, 6, 7], 3, True, False, False)
    assert IdRange.parse(5) == IdRange(5, 5)
    assert ids.overlaps(IdRange(7, 9))
    assert not ids.overlaps(IdRange(8, 9))


def test_secret_compares_without_being_shown():
    secret = Secret("hush")
    assert (str(secret), repr(secret), f"{secret}") == ("***", "Secret(***)", "***")
    assert secret == Secret("hush")
    assert secret != Secret("hash")
    assert secret.reveal() == "hush"
    with pytest.raises(TypeError, match="cannot be pickled"):
        secret.__reduce__()


def test_printed_configuration_has_the_origin_of_each_value(tmp_path):
    path = tmp_path / "lab.toml"
    path.write_text('[sample]\nratio = 0.25\ntoken = "hush"\n\n[[sample.streams]]\nstream_id = 5\n')
    config = Config.load(
        SampleSettings,
        LogSettings,
        file=path,
        environ={"TENSORPOOL_SAMPLE__MODE": "0600"},
        flags={("log", "level"): Override("debug", Origin("flag", "-v"))},
    )
    assert (
        config.to_toml()
        == f"""\
[sample]
namespace = "default"  # default
period = "1s"  # default
ratio = 0.25  # {path}:2
prefault = true  # default
base = "/dev/shm"  # default
mode = "0600"  # environment TENSORPOOL_SAMPLE__MODE
order = "row"  # default
shade = "light"  # default
# ids is not set  # default
# token is set, and not shown  # {path}:3
tags = []  # default

[sample.limits]
leases = 32  # default
total = "4GiB"  # default

[[sample.streams]]
stream_id = 5  # {path}:6
name = ""  # default
nslots = 8  # default
pools = ["1MiB"]  # default

[log]
format = "text"  # default
level = "debug"  # flag -v
repeats = 20  # default
"""
    )


def test_file_name_cannot_break_out_of_its_comment(tmp_path):
    path = tmp_path / "x\nnamespace = 'forged'\n#.toml"
    path.write_text("[sample]\nratio = 0.25\n")
    printed = Config.load(SampleSettings, file=path, environ={}).to_toml()
    assert tomllib.loads(printed)["sample"]["namespace"] == "default"


AWKWARD = '''\
# a comment with = and [brackets]
top = 1
"quoted key" = "a # no comment"   # 3
[a]
x = """
[not.a.table]
y = 1
""" # a comment after it
lit = \'\'\'
z = 2\'\'\'\'
esc = "a\\"b = [1]"
arr = [ 1, # one
  "]", { deep = 5 },
   { other = 6 },
]
inline = { p = 1, q = { r = [ { s = 1 } ] } }
dotted . "key.with.dot" = 2
date = 1979-05-27 07:32:00
[[a.list]]
k = 1
[a.list.sub]
m = 1
[[a.list]]
k = 2
[a."b.c".d]
n = 0x10
'''


def test_line_numbers_handle_all_toml_syntax():
    lines = line_numbers(AWKWARD)
    assert {path: line for path, line in lines.items() if len(path) == 1} == {
        ("top",): 2,
        ("quoted key",): 3,
        ("a",): 4,
    }
    assert lines[("a", "x")] == 5
    assert lines[("a", "lit")] == 9
    assert lines[("a", "esc")] == 11
    assert lines[("a", "arr", 1)] == 13
    assert lines[("a", "arr", 3, "other")] == 14
    assert lines[("a", "inline", "q", "r", 0, "s")] == 16
    assert lines[("a", "dotted", "key.with.dot")] == 17
    assert lines[("a", "date")] == 18
    assert [lines[("a", "list", index, "k")] for index in (0, 1)] == [20, 24]
    assert lines[("a", "list", 0, "sub", "m")] == 22
    assert lines[("a", "b.c", "d", "n")] == 26
    assert ("a", "y") not in lines


def every_path(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    entries = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, entry in entries:
        yield (*path, key)
        yield from every_path(entry, (*path, key))


def test_every_key_of_a_complex_document_has_a_line():
    assert set(every_path(tomllib.loads(AWKWARD))) == set(line_numbers(AWKWARD))


VALUES = st.recursive(
    st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=12,
)


@given(document=st.dictionaries(TEXT, VALUES, max_size=4))
@settings(max_examples=200)
def test_written_document_reads_back_with_a_line_per_key(document):
    text = "".join(f"{literal(key)} = {literal(value)}\n" for key, value in document.items())
    assert tomllib.loads(text) == document
    lines = line_numbers(text)
    assert set(every_path(document)) == set(lines)
    assert [lines[(key,)] for key in document] == list(range(1, len(document) + 1))
