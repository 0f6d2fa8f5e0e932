"""Loading of settings from TOML, environment and flags."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorpool.errors import InvalidConfig
from tensorpool.runtime import LogSettings
from tensorpool.runtime.config import (
    Config,
    IdRange,
    Secret,
    SizeBytes,
    check_file,
    setting,
    settings,
    table,
)
from tensorpool.runtime.config.spec import spec_of
from tests.unit.runtime.sample import LimitSettings, SampleSettings, Shade, StreamSettings

EVERYTHING = """
[sample]
namespace = "lab"
period = "250ms"
ratio = 1
prefault = false
base = "/mnt/huge"
mode = "0600"
order = "column"
shade = "dark"
ids = "20000-29999"
token = "hush"
tags = ["a", "b"]

[sample.limits]
leases = 3
total = "64KiB"

[[sample.streams]]
stream_id = 1
name = "camera"
nslots = 16
pools = ["64KiB", 128]

[[sample.streams]]
stream_id = 2
"""


@settings("required")
class RequiredSettings:
    """Needs something."""

    out: str = setting("Where.")


@table
class NullDefault:
    x: int | None = setting("X.", default=5)


@table
class SameKey:
    size: int = setting("X.", default=5)
    size_bytes: SizeBytes = setting("X.", default=5)


@table
class NoKind:
    x: complex = setting("X.", default=0j)


def test_empty_configuration_has_the_defaults(load):
    assert load()[SampleSettings] == SampleSettings()
    assert load()[LogSettings] == LogSettings()


def test_every_kind_of_value_is_read(load):
    assert load(EVERYTHING)[SampleSettings] == SampleSettings(
        namespace="lab",
        period_ns=250_000_000,
        ratio=1.0,
        prefault=False,
        base=Path("/mnt/huge"),
        mode=0o600,
        order="column",
        shade=Shade.DARK,
        ids=IdRange(20000, 29999),
        token=Secret("hush"),
        tags=("a", "b"),
        limits=LimitSettings(leases=3, total_bytes=65536),
        streams=(
            StreamSettings(stream_id=1, name="camera", nslots=16, pools_bytes=(65536, 128)),
            StreamSettings(stream_id=2),
        ),
    )


def test_nested_table_gets_the_defaults_of_its_owner(load):
    limits = load("[sample.limits]\ntotal = 1\n")[SampleSettings].limits
    assert limits == LimitSettings(leases=32, total_bytes=1)


def test_environment_overrides_file_and_flags_override_both(load):
    environ = {"TENSORPOOL_SAMPLE__NAMESPACE": "env", "TENSORPOOL_SAMPLE__LIMITS__LEASES": "5"}
    config = load('[sample]\nnamespace = "file"\nratio = 0.25\n', environ, sample__namespace="flag")
    sample = config[SampleSettings]
    assert (sample.namespace, sample.limits.leases, sample.ratio, sample.order) == ("flag", 5, 0.25, "row")
    assert str(config.origin(SampleSettings, "namespace")) == "flag --sample__namespace"
    assert (
        str(config.origin(SampleSettings, "limits", "leases"))
        == "environment TENSORPOOL_SAMPLE__LIMITS__LEASES"
    )
    assert str(config.origin(SampleSettings, "ratio")).endswith("lab.toml:3")
    assert str(config.origin(SampleSettings, "order")) == "default"


@pytest.mark.parametrize(
    ("key", "text", "attribute", "value"),
    [
        ("PERIOD", "2s", "period_ns", 2_000_000_000),
        ("RATIO", "0.125", "ratio", 0.125),
        ("PREFAULT", "no", "prefault", False),
        ("BASE", "/x y", "base", Path("/x y")),
        ("MODE", "0600", "mode", 0o600),
        ("SHADE", "dark", "shade", Shade.DARK),
        ("IDS", "5-6", "ids", IdRange(5, 6)),
        ("IDS", "", "ids", None),
        ("TAGS", "a, b", "tags", ("a", "b")),
        ("TAGS", '["a,b"]', "tags", ("a,b",)),
        ("TAGS", "", "tags", ()),
        ("STREAMS", "[{stream_id = 3}]", "streams", (StreamSettings(stream_id=3),)),
    ],
)
def test_text_of_the_environment_is_read_by_kind(load, key, text, attribute, value):
    sample = load("", {f"TENSORPOOL_SAMPLE__{key}": text})[SampleSettings]
    assert getattr(sample, attribute) == value


def test_tables_may_be_passed_already_parsed():
    config = Config.load(SampleSettings, tables={"sample": {"limits": {"leases": 9}}}, environ={})
    assert config[SampleSettings].limits.leases == 9


def test_secret_is_never_shown(load, problems):
    config = load('[sample]\ntoken = "hush"\n')
    assert "hush" not in f"{config[SampleSettings]!r}{config[SampleSettings]}{config.to_toml()}"
    assert config[SampleSettings].token.matches("hush")
    assert not config[SampleSettings].token.matches(b"hush!")
    for wrong in ('token = ["hush"]', 'tokn = "hush"', "token = {hush = 1}"):
        assert "hush" not in "".join(problems(f"[sample]\n{wrong}\n")).replace("tokn", ""), wrong
    assert "hush" not in "".join(problems('sample = "hush"\n'))


def test_check_file_checks_all_roles_of_a_file(tmp_path):
    path = tmp_path / "all.toml"
    path.write_text("[sample]\nratio = 9\n[log]\nlevel = 'x'\n")
    with pytest.raises(InvalidConfig) as caught:
        check_file(path)
    assert {problem.key for problem in caught.value.problems} == {"sample.ratio", "log.level"}


def test_missing_required_key_error_names_its_sources():
    with pytest.raises(
        InvalidConfig, match=r"required\.out: missing; set it in the file, or TENSORPOOL_REQUIRED__OUT"
    ):
        Config.load(RequiredSettings, tables={}, environ={})
    assert (
        Config.load(RequiredSettings, environ={"TENSORPOOL_REQUIRED__OUT": "x"})[RequiredSettings].out == "x"
    )


def test_invalid_settings_class_is_refused():
    with pytest.raises(TypeError, match="TOML has no null"):
        spec_of(NullDefault)
    with pytest.raises(TypeError, match="two attributes have the key 'size'"):
        spec_of(SameKey)
    with pytest.raises(TypeError, match="not a type of setting"):
        spec_of(NoKind)
