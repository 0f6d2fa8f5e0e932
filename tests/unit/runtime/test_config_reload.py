"""What may change while a role runs, and what may not."""

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


class Listening:
    def __init__(self) -> None:
        self.heard: list[object] = []

    def do_work(self) -> int:
        return 0

    def on_reload(self, config: Config) -> None:
        self.heard.append(config[SampleSettings].period_ns)


def test_what_is_live_is_taken_over_and_the_rest_stays(path, config):
    path.write_text('[sample]\nnamespace = "other"\nperiod = "2s"\n[sample.limits]\nleases = 7\ntotal = 8\n')
    changes = config.reload()
    assert [(change.key, change.live) for change in changes] == [
        ("sample.namespace", False),
        ("sample.period", True),
        ("sample.limits.leases", False),
        ("sample.limits.total", True),
    ]
    made = config[SampleSettings]
    assert (made.namespace, made.period_ns, made.order) == ("lab", 2_000_000_000, "column")
    assert (made.limits.leases, made.limits.total_bytes) == (32, 8)
    assert f'namespace = "lab"  # {path}:2' in config.to_toml()
    assert f"total = 8  # {path}:6" in config.to_toml()


def test_a_change_that_needs_a_restart_is_told_at_every_reload(path, config):
    path.write_text('[sample]\nnamespace = "other"\n')
    assert [change.key for change in config.reload()] == ["sample.namespace"]
    assert [change.key for change in config.reload()] == ["sample.namespace"]


def test_a_value_taken_out_of_the_file_is_the_default_again(path, config):
    path.write_text('[sample]\nnamespace = "lab"\nperiod = "2s"\n')
    config.reload()
    path.write_text('[sample]\nnamespace = "lab"\n')
    assert [change.key for change in config.reload()] == ["sample.period"]
    assert config[SampleSettings].period_ns == 1_000_000_000


@pytest.mark.parametrize("text", ["[sample]\nratio = 9\nperiod = '5s'\n", "[sample\n", None])
def test_a_bad_file_changes_nothing(path, config, text):
    before = config.to_toml()
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    with pytest.raises(InvalidConfig):
        config.reload()
    assert config.to_toml() == before


def test_the_role_hears_of_live_changes_and_the_log_of_all(path, config, caplog):
    agent, logs = Listening(), Logging("sample")
    path.write_text('[sample]\nnamespace = "other"\nperiod = "2s"\n[log]\nlevel = "debug"\n')
    root = logging.getLogger()
    before = root.level
    with caplog.at_level(logging.INFO):
        reload(config, agent, logs)
        assert root.level == logging.DEBUG
        root.setLevel(before)
    assert agent.heard == [2_000_000_000]
    assert [record.getMessage() for record in caplog.records] == [
        "sample.namespace has changed, and takes effect after a restart",
        "sample.period has changed",
        "log.level has changed",
    ]
    assert caplog.records[0].levelno == logging.WARNING


def test_a_bad_file_is_logged_and_the_role_hears_nothing(path, config, caplog):
    agent = Listening()
    path.write_text("[sample]\nratio = 9\nperiod = '5s'\n")
    reload(config, agent, Logging("sample"))
    assert agent.heard == []
    assert caplog.records[0].getMessage().endswith("lab.toml:2: sample.ratio = 9: at most 1")


def test_nothing_changed_is_said_too(config, caplog):
    agent = Listening()
    level = logging.getLogger().level
    with caplog.at_level(logging.INFO):
        reload(config, agent, Logging("sample"))
        logging.getLogger().setLevel(level)
    assert caplog.messages == ["the configuration was read again: nothing has changed"]
    assert agent.heard == []


def test_a_changed_secret_is_told_without_being_shown(path, config, caplog):
    path.write_text('[sample]\nnamespace = "lab"\nperiod = "1s"\ntoken = "hush"\n')
    level = logging.getLogger().level
    reload(config, Listening(), Logging("sample"))
    logging.getLogger().setLevel(level)
    assert "sample.token has changed" in caplog.text
    assert "hush" not in caplog.text
