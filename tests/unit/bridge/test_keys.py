"""Key files: private, complete, changed in three steps."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from tensorpool.bridge.seal import (
    KeyFile,
    add_key,
    create_key_file,
    host_number,
    promote_key,
    retire_keys,
)
from tensorpool.cli import cli
from tensorpool.errors import ConfigError

HEX = "0123456789abcdef" * 4


def written(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_new_key_file_is_private_and_random(tmp_path: Path):
    first, second = (create_key_file(tmp_path / name) for name in ("a", "b"))
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600
    assert first.keys != second.keys
    assert len(first.keys[0]) == 32
    with pytest.raises(ConfigError, match="exists"):
        create_key_file(tmp_path / "a")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o666])
def test_file_that_others_can_read_is_refused(tmp_path: Path, mode: int):
    path = written(tmp_path / "key", HEX, mode)
    with pytest.raises(ConfigError, match=rf"has mode {mode:04o}.*chmod 600"):
        KeyFile.read(path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "has 0 keys"),
        ("# nothing\n\n", "has 0 keys"),
        ("abc", "line 1: a key has 64 hexadecimal digits"),
        (f"{HEX}\n{HEX[:-1]}", "line 2: a key has 64 hexadecimal digits"),
        (f"{HEX}\n{HEX}", "the same key twice"),
        ("\n".join(f"{n:064x}" for n in range(5)), "has 5 keys; use 1 to 4"),
    ],
)
def test_invalid_key_file_is_refused_without_showing_keys(tmp_path: Path, text: str, reason: str):
    with pytest.raises(ConfigError, match=reason) as caught:
        KeyFile.read(written(tmp_path / "key", text))
    assert HEX[:-1] not in str(caught.value)


def test_missing_file_and_directory_are_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="tensorpool bridge keygen"):
        KeyFile.read(tmp_path / "none")
    with pytest.raises(ConfigError, match="is not a file"):
        KeyFile.read(tmp_path)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(ConfigError, match="is not a file"):
        KeyFile.read(tmp_path / "pipe")


def test_keys_change_in_three_steps(tmp_path: Path):
    path = tmp_path / "key"
    [old] = create_key_file(path).keys
    before = KeyFile.read(path)
    assert add_key(path).keys[0] == old
    assert before.is_changed()
    *_, new = KeyFile.read(path).keys
    assert promote_key(path).keys == (new, old)
    assert retire_keys(path).keys == (new,)
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigError, match="--add first"):
        promote_key(path)


def test_keygen_shows_names_and_never_keys(tmp_path: Path):
    path = tmp_path / "key"
    run = CliRunner().invoke
    first = run(cli, ["bridge", "keygen", str(path)])
    assert first.exit_code == 0
    assert first.output.endswith("in use\n")
    added = run(cli, ["bridge", "keygen", str(path), "--add", "--json"])
    file = KeyFile.read(path)
    assert json.loads(added.output) == {"file": str(path), "key_ids": file.ids}
    for key in file.keys:
        assert key.hex() not in first.output + added.output + repr(file)
    again = run(cli, ["bridge", "keygen", str(path)])
    assert again.exit_code != 0


def test_host_number_is_that_of_a_media_driver_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    here = host_number(str(tmp_path / "aeron"))
    assert here == host_number(f"{tmp_path}/other/../aeron")
    assert 0 <= here < 1 << 64
    assert here != host_number(str(tmp_path / "aeron-2"))
    monkeypatch.setattr("socket.gethostname", lambda: "another-container")
    assert here != host_number(str(tmp_path / "aeron"))
