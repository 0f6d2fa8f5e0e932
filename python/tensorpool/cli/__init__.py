"""The command `tensorpool`: nouns, then verbs. Data on stdout, messages on stderr.

Exit status: 0 success, 1 failure, 2 usage error.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .root import cli

__all__ = ["cli", "main"]


@contextmanager
def end_at_interrupt() -> Iterator[None]:
    """Lets Ctrl-C end the process without a message meanwhile, as it ends `cat`.

    Loading the modules of a command takes half a second and more; a traceback from inside an import would
    help no user. In a test or a thread, where Ctrl-C has another handler or none can be set, nothing changes.
    """
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def main() -> None:
    """Runs the command."""
    with end_at_interrupt():
        from .root import run

    run()


def __getattr__(name: str) -> Any:
    # The click commands, for tests and documentation tools: loaded on demand, as in `main`.
    if name == "cli":
        from .root import cli

        return cli
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
