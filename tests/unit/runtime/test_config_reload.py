"""Reloads of a configuration: live settings and settings that need a restart."""

from __future__ import annotations

import logging

import pytest

from tensorpool.errors import InvalidConfig
from tensorpool.runtime import LogSettings
from tensorpool.runtime.config import Config
from tensorpool.runtime.logs import Logging
from tensorpool.runtime.role import reload
from tests.unit.runtime.sample import SampleSettings


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "lab.toml"
    path.write_text('[sample]\nnamespace = "lab"\nperiod = "1s"\n')
    return path


@pytest.fixture
def config(path):
    environ = {"TENSORPOOL_SAMPLE__ORDER": "column"}
    return Config.load(SampleSettings, LogSettings, file=path, environ=environ)


class ReloadRecorder:
    def __init__(self) -> None:
        self.periods: list[object] = []

    def do_work(self) -> int:
        return 0

    def on_reload(self, config: Config) -> None:
        self.periods.append(config[SampleSettings].period_ns)


def test_reload_applies_live_settings_only(path, config):
    path.write_text('[sample]\nnamespace = "other"\nperiod = "2s"\n[sample.limits]\nleases = 7\ntotal = 8\n')
    changes = config.reload()
    assert [(change.key, change.live) for change in changes] == [
        ("sample.namespace", False),
        ("sample.period", True),
        ("sample.limits.leases", False),
        ("sample.limits.total", True),
    ]
    sample = config[SampleSettings]
    assert (sample.namespace, sample.period_ns, sample.order) == ("lab", 2_000_000_000, "column")
    assert (sample.limits.leases, sample.limits.total_bytes) == (32, 8)
    assert f'namespace = "lab"  # {path}:2' in config.to_toml()
    assert f"total = 8  # {path}:6" in config.to_toml()


def test_reload_reports_pending_restart_changes_every_time(path, config):
    path.write_text('[sample]\nnamespace = "other"\n')
    assert [change.key for change in config.reload()] == ["sample.namespace"]
    assert [change.key for change in config.reload()] == ["sample.namespace"]


def test_value_removed_from_the_file_returns_to_its_default(path, config):
    path.write_text('[sample]\nnamespace = "lab"\nperiod = "2s"\n')
    config.reload()
    path.write_text('[sample]\nnamespace = "lab"\n')
    assert [change.key for change in config.reload()] == ["sample.period"]
    assert config[SampleSettings].period_ns == 1_000_000_000


@pytest.mark.parametrize("text", ["[sample]\nratio = 9\nperiod = '5s'\n", "[sample\n", None])
def test_reload_of_an_invalid_file_changes_nothing(path, config, text):
    before = config.to_toml()
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    with pytest.raises(InvalidConfig):
        config.reload()
    assert config.to_toml() == before


def test_reload_notifies_the_agent_and_logs_changes(path, config, caplog):
    agent, logs = ReloadRecorder(), Logging("sample")
    path.write_text('[sample]\nnamespace = "other"\nperiod = "2s"\n[log]\nlevel = "debug"\n')
    root = logging.getLogger()
    before = root.level
    with caplog.at_level(logging.INFO):
        reload(config, agent, logs)
        assert root.level == logging.DEBUG
        root.setLevel(before)
    assert agent.periods == [2_000_000_000]
    assert [record.getMessage() for record in caplog.records] == [
        "sample.namespace has changed, and takes effect after a restart",
        "sample.period has changed",
        "log.level has changed",
    ]
    assert caplog.records[0].levelno == logging.WARNING


def test_reload_of_an_invalid_file_is_only_logged(path, config, caplog):
    agent = ReloadRecorder()
    path.write_text("[sample]\nratio = 9\nperiod = '5s'\n")
    reload(config, agent, Logging("sample"))
    assert agent.periods == []
    assert caplog.records[0].getMessage().endswith("lab.toml:2: sample.ratio = 9: at most 1")


def test_reload_without_changes_is_logged(config, caplog):
    agent = ReloadRecorder()
    level = logging.getLogger().level
    with caplog.at_level(logging.INFO):
        reload(config, agent, Logging("sample"))
        logging.getLogger().setLevel(level)
    assert caplog.messages == ["the configuration was reloaded: no setting has changed"]
    assert agent.periods == []


def test_changed_secret_is_logged_without_its_value(path, config, caplog):
    path.write_text('[sample]\nnamespace = "lab"\nperiod = "1s"\ntoken = "hush"\n')
    level = logging.getLogger().level
    reload(config, ReloadRecorder(), Logging("sample"))
    logging.getLogger().setLevel(level)
    assert "sample.token has changed" in caplog.text
    assert "hush" not in caplog.text
