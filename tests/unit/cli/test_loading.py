"""Loading of the commands: Ctrl-C, a full disk, completion."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from tensorpool.cli import cli
from tensorpool.cli.root import SECTIONS

# Delays the import of the commands, during which a user may press Ctrl-C.
_SLOW = """
import sys, time
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "tensorpool.cli.{module}":
            print("loading", flush=True)
            time.sleep(60)
sys.meta_path.insert(0, Slow())
from tensorpool.cli import main
sys.argv = ["tensorpool", "shm", "--help"]
main()
"""
# Loads the commands, and prints whether the handler of Ctrl-C is the expected one.
_LOADED = """
import signal
import tensorpool.cli.root as root
root.run = lambda: print(signal.getsignal(signal.SIGINT) is {handler})
from tensorpool.cli import main
main()
"""


@pytest.mark.parametrize("module", ["root", "shm"])
def test_interrupt_while_loading_prints_nothing(module: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _SLOW.format(module=module)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "loading\n"
        child.send_signal(signal.SIGINT)
        _, message = child.communicate(timeout=60)
    assert (child.returncode, message) == (-signal.SIGINT, "")


def test_interrupt_after_loading_is_handled_by_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LOADED.format(handler="signal.default_int_handler")],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == "True\n"


def test_ignored_interrupts_stay_ignored() -> None:
    """A shell starts background jobs with SIGINT ignored."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
            + _LOADED.format(handler="signal.SIG_IGN"),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == "True\n"


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_full_disk_behind_a_redirection_is_one_sentence(more: list[str]) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "tensorpool", "doctor", "sizing"),
                *("--rate", "1", "--bytes", "1", "--latency", "1", *more),
            ],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )
    assert (done.returncode, done.stderr) == (
        1,
        "error: stdout cannot be written: No space left on device\n",
    )


def test_tab_completes_commands() -> None:
    """As in README.md; it works only if nothing is printed before."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; sys.argv = ['tensorpool']; from tensorpool.cli import main; main()",
        ],
        env={
            **os.environ,
            "_TENSORPOOL_COMPLETE": "bash_complete",
            "COMP_WORDS": "tensorpool strea",
            "COMP_CWORD": "1",
        },
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == "plain,stream\n"


def test_command_loads_no_module_of_another() -> None:
    """Half a second for each Tab key, otherwise."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; sys.argv = ['tensorpool', '--help']\n"
            "import contextlib\n"
            "from tensorpool.cli import main\n"
            "with contextlib.suppress(SystemExit): main()\n"
            "print(sorted(name for name in sys.modules if name.startswith('tensorpool.cli.')))",
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.splitlines()[-1] == "['tensorpool.cli.params', 'tensorpool.cli.root']"


def test_help_of_each_command_is_its_first_sentence() -> None:
    """The root command has the sentences itself, so that it imports no command for them."""
    shown = {command.name: command.help for section in SECTIONS.values() for command in section}
    assert shown == {name: command.get_short_help_str(1000) for name, command in cli.commands.items()}


def test_help_is_coloured_on_a_terminal_only() -> None:
    for arguments in (["--help"], ["shm", "--help"], ["top", "--help"]):
        coloured = CliRunner().invoke(cli, arguments, color=True).output
        plain = CliRunner().invoke(cli, arguments).output
        assert "\x1b[1mUsage: " in coloured
        assert click.unstyle(coloured) == plain
        assert "\x1b" not in plain
