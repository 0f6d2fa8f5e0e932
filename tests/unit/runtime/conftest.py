"""Fixtures that load configurations from text."""

from __future__ import annotations

import pytest

from tensorpool.errors import ConfigProblem, InvalidConfig
from tensorpool.runtime import LogSettings
from tensorpool.runtime.config import Config, Origin, Override
from tests.unit.runtime.sample import SampleSettings


@pytest.fixture
def load(tmp_path):
    """Loads a configuration from text, with variables and flags as given."""

    def load(text: str = "", environ: dict[str, str] | None = None, **flags: str) -> Config:
        path = tmp_path / "lab.toml"
        path.write_text(text)
        given: dict[tuple[str | int, ...], Override] = {
            tuple(key.split("__")): Override(text, Origin("flag", f"--{key}")) for key, text in flags.items()
        }
        return Config.load(SampleSettings, LogSettings, file=path, environ=environ or {}, flags=given)

    return load


@pytest.fixture
def problems(load):
    """The problems of a configuration as text, without the directory of the file."""

    def problems(*sources: object, **flags: str) -> list[str]:
        with pytest.raises(InvalidConfig) as caught:
            load(*sources, **flags)
        return [_without_directory(problem) for problem in caught.value.problems]

    return problems


def _without_directory(problem: ConfigProblem) -> str:
    source = problem.source or ""
    return str(problem).replace(source, source.rpartition("/")[2]) if source.startswith("/") else str(problem)
