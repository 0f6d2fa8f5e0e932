"""The command `tensorpool`: nouns, then verbs. Data on stdout, messages on stderr.

Exit status: 0 success, 1 failure, 2 usage error.
"""

import signal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .root import cli

__all__ = ["cli", "main"]


def main() -> None:
    """Runs the command. Ctrl-C while the modules are loaded ends it without a message, as it ends `cat`.

    Loading takes half a second and more; a traceback from inside an import would help no user.
    """
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_default:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from .root import run

    if is_default:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def __getattr__(name: str) -> Any:
    # The click commands, for tests and documentation tools: loaded on demand, as in `main`.
    if name == "cli":
        from .root import cli

        return cli
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
