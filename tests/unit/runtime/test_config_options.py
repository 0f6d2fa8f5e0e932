"""The options of a role's command."""

from __future__ import annotations

import tomllib
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tensorpool.cli.options import role_options
from tensorpool.errors import InvalidConfig
from tensorpool.runtime import LogSettings, RuntimeSettings
from tensorpool.runtime.config import Config
from tests.unit.runtime.sample import SampleSettings


@click.command()
@role_options(SampleSettings)
@click.option("--own", default="nothing")
def sample(config: Config, own: str) -> None:
    """A role."""
    role, level = config[SampleSettings], config[LogSettings].level
    click.echo(f"{own} {role.namespace} {role.prefault} {','.join(role.tags)} {level}")


@pytest.fixture
def run(monkeypatch):
    monkeypatch.delenv("TENSORPOOL_CONFIG", raising=False)

    def run(*arguments: str, code: int = 0, **environ: str) -> str:
        done = CliRunner().invoke(sample, arguments, env=environ)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert done.exit_code == code, done.output
        return done.output

    return run


def test_command_gets_the_configuration_and_its_own_options(run):
    assert run("--own", "x") == "x default True  info\n"


def test_flags_override_the_environment(run):
    out = run(
        "--namespace", "lab", "--no-prefault", "--tag", "a", "--tag", "b", TENSORPOOL_SAMPLE__NAMESPACE="env"
    )
    assert out == "nothing lab False a,b info\n"


def test_any_setting_can_be_set(run):
    assert run("--set", "sample.namespace=a=b", "--set", "log.level=error") == "nothing a=b True  error\n"


def test_verbose_is_a_log_level(run):
    assert run("-v", "--log-level", "error") == "nothing default True  debug\n"


def test_config_file_is_named_by_option_or_environment(run, tmp_path):
    first, second = tmp_path / "first.toml", tmp_path / "second.toml"
    first.write_text('[sample]\nnamespace = "first"\n')
    second.write_text('[sample]\nnamespace = "second"\n')
    assert " second " in run(TENSORPOOL_CONFIG=str(second))
    assert " first " in run("--config", str(first), TENSORPOOL_CONFIG=str(second))


def test_check_option_accepts_a_valid_configuration_without_running(run, tmp_path):
    path = tmp_path / "lab.toml"
    path.write_text("[sample]\nratio = 1\n")
    assert run("--config", str(path), "--check") == f"the configuration is good ({path})\n"


def test_check_option_names_problems(run, tmp_path):
    path = tmp_path / "lab.toml"
    path.write_text("[sample]\nratio = 9\n")
    with pytest.raises(InvalidConfig, match=r"lab\.toml:2: sample\.ratio = 9: at most 1"):
        run("--config", str(path), "--check")
    with pytest.raises(InvalidConfig, match=r"flag --log-level: log\.level = \"nois\": not one of"):
        run("--check", "--log-level", "nois")


def test_printed_configuration_gives_the_same_configuration(run, tmp_path):
    printed = run("--print-config", "--tag", "a,b", "--set", "sample.token=hush", "--ready-file", "/x")
    assert "hush" not in printed
    assert "# token is set, and not shown  # flag --set" in printed
    assert 'ready_file = "/x"  # flag --ready-file' in printed
    path = tmp_path / "printed.toml"
    path.write_text(printed)
    again = run("--config", str(path), "--print-config")
    assert tomllib.loads(again) == tomllib.loads(printed)


def test_set_option_without_a_key_is_a_usage_error(run):
    assert "write TABLE.KEY=VALUE" in run("--set", "nonsense", code=2)


def test_help_names_the_flags_with_their_defaults(run):
    out = " ".join(run("--help").split())
    assert "--namespace TEXT Its name space. [default: default]" in out
    assert "--prefault / --no-prefault" in out
    assert "--log-format text|json" in out
    assert "--tag TEXT Words." in out


def test_runtime_table_is_always_read(tmp_path):
    config = Config.load(RuntimeSettings, tables={"runtime": {"ready_file": "~/x"}}, environ={})
    assert config[RuntimeSettings].ready_file == Path("~/x").expanduser()
