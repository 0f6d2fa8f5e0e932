"""The command `tensorpool`: nouns, then verbs. Data on stdout, words on stderr.

Exit status: 0 done, 1 failed, 2 misused.
"""

import signal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .root import cli

__all__ = ["cli", "main"]


def main() -> None:
    """Runs the command. Ctrl-C while it is still being loaded ends it as it ends `cat`: without a word.

    Loading takes half a second and more, and a traceback of half of it tells nobody anything.
    """
    loading = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if loading:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from .root import run

    if loading:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def __getattr__(name: str) -> Any:
    # The commands themselves, for who takes them apart: loaded when asked for, as `main` does.
    if name == "cli":
        from .root import cli

        return cli
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
