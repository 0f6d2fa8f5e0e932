"""Problems of a configuration: all are reported, each with its key, value and line."""

from __future__ import annotations

import pytest

from tensorpool.errors import ConfigError, ConfigProblem, InvalidConfig
from tensorpool.runtime.config import Config
from tests.unit.runtime.sample import SampleSettings


def test_all_problems_are_reported_together(problems):
    text = """\
[sample]
namespaze = "lab"
period = 5
ratio = 2
order = "colunm"
token = 7
[sample.limits]
leases = 0
[[sample.streams]]
nslots = 3
[[sample.streams]]
stream_id = 1
pools = ["4MB"]
[smaple]
[log]
level = "chatty"
"""
    assert problems(text) == [
        "lab.toml:14: smaple: no such table; did you mean 'sample'?",
        "lab.toml:2: sample.namespaze: no such key; did you mean 'namespace'?",
        "lab.toml:3: sample.period = 5: write a number and ns, us, ms, s, min, h or d, as in '250ms'",
        "lab.toml:4: sample.ratio = 2: at most 1",
        "lab.toml:5: sample.order = \"colunm\": not one of row, column; did you mean 'column'?",
        "lab.toml:6: sample.token: not text; put it in quotes",
        "lab.toml:8: sample.limits.leases = 0: at least 1",
        "lab.toml:9: sample.streams[0].stream_id: missing",
        "lab.toml:10: sample.streams[0].nslots = 3: must be a power of two",
        'lab.toml:13: sample.streams[1].pools = ["4MB"]: '
        "write a number and B, KiB, MiB or GiB, as in '4MiB'",
        'lab.toml:16: log.level = "chatty": not one of debug, info, warning, error',
    ]


def test_error_lists_its_problems():
    first, second = ConfigProblem("bad", key="a.b", value="1", source="f", line=3), ConfigProblem("worse")
    assert str(InvalidConfig([first])) == "f:3: a.b = 1: bad"
    assert (
        str(InvalidConfig([first, second]))
        == "2 problems in the configuration:\n  f:3: a.b = 1: bad\n  worse"
    )
    assert issubclass(InvalidConfig, ConfigError)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("prefault = 1", "sample.prefault = 1: write true or false, without quotes"),
        ('prefault = "true"', 'sample.prefault = "true": write true or false, without quotes'),
        ("namespace = 5", "sample.namespace = 5: not text; put it in quotes"),
        ("ratio = true", "sample.ratio = true: not a number"),
        ("ratio = nan", "sample.ratio = nan: not a number"),
        ('base = ""', 'sample.base = "": not a path'),
        ('base = "a\\u0000"', 'sample.base = "a\\u0000": not a path'),
        ('mode = "0888"', "sample.mode = \"0888\": write permission bits in octal, as in '0640'"),
        ("shade = true", "sample.shade = true: not one of light, dark"),
        ('ids = "9-5"', "sample.ids = \"9-5\": the last id is below the first; write '5-9'"),
        ('ids = "1-99999999999"', 'sample.ids = "1-99999999999": the largest id is 4294967295'),
        ('tags = "a"', 'sample.tags = "a": not a list; put it in brackets'),
        ("tags = [1]", "sample.tags = [1]: not text; put it in quotes"),
        ('period = "1ms"', 'sample.period = "1ms": at least "10ms"'),
        ('period = "0.1ns"', 'sample.period = "0.1ns": finer than a nanosecond; round to whole nanoseconds'),
        (
            'period = "9999999d"',
            'sample.period = "9999999d": longer than 292 years; the largest duration is 2^63 - 1 ns',
        ),
        ("limits = 3", "sample.limits = 3: not a table"),
        ("streams = 3", "sample.streams = 3: not an array of tables; write [[sample.streams]]"),
        ("streams = [3]", "sample.streams[0] = 3: not a table"),
        ("limits.leases = true", "sample.limits.leases = true: not a whole number"),
        ("limits.leases = 1.0", "sample.limits.leases = 1.0: not a whole number"),
        ("limits.leases = 5000", "sample.limits.leases = 5000: at most 1024"),
        ("limits.total = -1", "sample.limits.total = -1: a size cannot be negative"),
    ],
)
def test_invalid_value_is_named_with_the_reason(problems, line, reason):
    assert problems(f"[sample]\n{line}\n") == [f"lab.toml:2: {reason}"]


def test_contradicting_values_are_named(problems):
    text = '[sample]\nids = "1-5"\n[[sample.streams]]\nstream_id = 4\n'
    assert problems(text) == ['lab.toml:2: sample.ids = "1-5": holds stream 4, which has an entry of its own']


def test_misspelt_variable_error_suggests_the_nearest_name(problems):
    environ = {"TENSORPOOL_SAMPLE__LIMTS__LEASES": "4", "TENSORPOOL_SAMPLE__RATIO": "x"}
    assert problems("", environ) == [
        "environment TENSORPOOL_SAMPLE__LIMTS__LEASES: sample.limts.leases: no such key; "
        "did you mean 'TENSORPOOL_SAMPLE__LIMITS__LEASES'?",
        'environment TENSORPOOL_SAMPLE__RATIO: sample.ratio = "x": not a number',
    ]


def test_key_of_another_table_is_suggested_there(problems):
    # Only [log] has a level.
    expected = "sample.level: no such key; did you mean {}?"
    assert problems("", {"TENSORPOOL_SAMPLE__LEVEL": "debug"}) == [
        f"environment TENSORPOOL_SAMPLE__LEVEL: {expected.format(repr('TENSORPOOL_LOG__LEVEL'))}"
    ]
    assert problems('[sample]\nlevel = "debug"\n') == [f"lab.toml:2: {expected.format(repr('log.level'))}"]
    assert problems("", sample__level="debug") == [
        f"flag --sample__level: {expected.format(repr('log.level'))}"
    ]


def test_suggested_variable_may_be_an_array(problems):
    (problem,) = problems("", {"TENSORPOOL_SAMPLE__STREEMS": "[]"})
    assert problem.endswith("did you mean 'TENSORPOOL_SAMPLE__STREAMS'?")


@pytest.mark.parametrize("key", ["LIMITS", "STREAMS__0__NAME", "NAMESPACE__X", ""])
def test_variable_for_a_table_is_refused(problems, key):
    (problem,) = problems("", {f"TENSORPOOL_SAMPLE__{key}": "x"})
    assert "no such key" in problem


def test_variables_of_other_programs_are_ignored(load):
    assert load("", {"TENSORPOOL_OTHER__X": "1", "TENSORPOOL_TEST_LONG": "1", "TENSORPOOL_SAMPLE": "1"})


def test_invalid_flag_is_named(problems):
    assert problems("", sample__ratio="x") == ['flag --sample__ratio: sample.ratio = "x": not a number']
    assert problems("", lgo__level="x") == [
        "flag --lgo__level: lgo.level: no such table; did you mean 'log'?"
    ]


def test_tables_of_other_roles_are_ignored(load):
    assert load("[driver]\nwhatever = 1\n[[bridge.mappings]]\nx = 2\n")


def test_key_outside_of_any_table_is_refused(problems):
    assert problems("namespace = 1\n") == ["lab.toml:1: namespace: a key outside of any table"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"[sample\n", "1: not TOML: Expected ']'"),
        (b"[sample]\nratio = 1\nratio = 2\n", "3: not TOML: Cannot overwrite a value"),
        (b"[sample]\nname = '\xff'\n", " not UTF-8 at byte 17"),
        (b"x = " + b"[" * 100_000, " nested too deeply"),
    ],
)
def test_invalid_toml_is_reported_with_the_line(tmp_path, content, reason):
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    with pytest.raises(InvalidConfig) as caught:
        Config.load(SampleSettings, file=path, environ={})
    assert str(caught.value).startswith(f"{path}:{reason}")


def test_missing_config_file_is_reported(tmp_path):
    with pytest.raises(InvalidConfig, match=r"none\.toml: cannot be read: No such file or directory"):
        Config.load(SampleSettings, file=tmp_path / "none.toml", environ={})
