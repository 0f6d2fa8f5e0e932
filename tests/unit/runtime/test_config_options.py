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
    made = config[SampleSettings]
    click.echo(f"{own} {made.namespace} {made.prefault} {','.join(made.tags)} {config[LogSettings].level}")


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


def test_the_command_gets_the_configuration_and_its_own_options(run):
    assert run("--own", "x") == "x default True  info\n"


def test_flags_of_settings_override_everything(run):
    out = run(
        "--namespace", "lab", "--no-prefault", "--tag", "a", "--tag", "b", TENSORPOOL_SAMPLE__NAMESPACE="env"
    )
    assert out == "nothing lab False a,b info\n"


def test_any_setting_can_be_set(run):
    assert run("--set", "sample.namespace=a=b", "--set", "log.level=error") == "nothing a=b True  error\n"


def test_verbose_is_a_log_level(run):
    assert run("-v", "--log-level", "error") == "nothing default True  debug\n"


def test_the_file_comes_by_option_or_by_environment(run, tmp_path):
    one, two = tmp_path / "one.toml", tmp_path / "two.toml"
    one.write_text('[sample]\nnamespace = "one"\n')
    two.write_text('[sample]\nnamespace = "two"\n')
    assert " two " in run(TENSORPOOL_CONFIG=str(two))
    assert " one " in run("--config", str(one), TENSORPOOL_CONFIG=str(two))


def test_check_says_that_all_is_well_and_runs_nothing(run, tmp_path):
    path = tmp_path / "lab.toml"
    path.write_text("[sample]\nratio = 1\n")
    assert run("--config", str(path), "--check") == f"the configuration is good ({path})\n"


def test_check_says_what_is_not(run, tmp_path):
    path = tmp_path / "lab.toml"
    path.write_text("[sample]\nratio = 9\n")
    with pytest.raises(InvalidConfig, match=r"lab\.toml:2: sample\.ratio = 9: at most 1"):
        run("--config", str(path), "--check")
    with pytest.raises(InvalidConfig, match=r"flag --log-level: log\.level = \"nois\": none of"):
        run("--check", "--log-level", "nois")


def test_the_printed_configuration_brings_about_the_same(run, tmp_path):
    printed = run("--print-config", "--tag", "a,b", "--set", "sample.token=hush", "--ready-file", "/x")
    assert "hush" not in printed
    assert "# token is set, and not shown  # flag --set" in printed
    assert 'ready_file = "/x"  # flag --ready-file' in printed
    path = tmp_path / "printed.toml"
    path.write_text(printed)
    again = run("--config", str(path), "--print-config")
    assert tomllib.loads(again) == tomllib.loads(printed)


def test_a_set_that_names_no_key_is_misuse(run):
    assert "write TABLE.KEY=VALUE" in run("--set", "nonsense", code=2)


def test_help_names_the_flags_with_their_defaults(run):
    out = " ".join(run("--help").split())
    assert "--namespace TEXT Its name space. [default: default]" in out
    assert "--prefault / --no-prefault" in out
    assert "--log-format text|json" in out
    assert "--tag TEXT Words." in out


def test_the_roles_own_tables_are_always_there(tmp_path):
    config = Config.load(RuntimeSettings, tables={"runtime": {"ready_file": "~/x"}}, environ={})
    assert config[RuntimeSettings].ready_file == Path("~/x").expanduser()
