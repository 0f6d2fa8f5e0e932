"""Loading of the commands: Ctrl-C, a full disk, completion."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

# Delays the import of the commands, during which a user may press Ctrl-C.
_SLOW = """
import sys, time
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "tensorpool.cli.root":
            print("loading", flush=True)
            time.sleep(60)
sys.meta_path.insert(0, Slow())
from tensorpool.cli import main
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


def test_interrupt_while_loading_prints_nothing() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _SLOW], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
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
