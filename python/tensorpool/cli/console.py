"""`tensorpool console`: the whole system in a browser, live."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..errors import ConfigError
from .options import ConnectOptions, connect_options, token_option

if TYPE_CHECKING:
    from ..console.access import Tokens
    from ..console.server import ConsoleOptions

_EPILOG = """
\b
Examples:
  tensorpool console --open
  tensorpool console --read-only --port 0
  tensorpool console --recordings /data/runs --pipelines /data/tables
  tensorpool console --token-file ~/.config/tensorpool/console.token
  tensorpool console --host 0.0.0.0 --token-file FILE --tls-cert C --tls-key K
  tensorpool console --host 0.0.0.0 --token-file FILE --behind-proxy
"""
_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command(epilog=_EPILOG)
@click.option("--open", "opens", is_flag=True, help="Open the page in the browser of this desktop.")
@click.option("--port", default=8470, show_default=True, type=click.IntRange(0, 65535), help="0: any.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--token-file",
    type=_FILE,
    help="A private file with the token; a second line is a token that only watches. Else a token is made.",
)
@click.option("--read-only", is_flag=True, help="Give no orders, whatever token a browser has.")
@click.option(
    "--recordings",
    "roots",
    type=click.Path(file_okay=False, path_type=Path),
    multiple=True,
    help="A directory of recordings to show, beside those of running recorders; new recordings are written "
    "into the first one. May be repeated.",
)
@click.option(
    "--pipelines",
    metavar="ROOT",
    multiple=True,
    help="Tables of a pipeline to show, a directory or a URI, or a directory of such. May be repeated.",
)
@click.option(
    "--exports",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep exports in this directory. Else a browser can fetch them until the console ends.",
)
@click.option("--tls-cert", type=_FILE, help="Certificate chain, in PEM.")
@click.option("--tls-key", type=_FILE, help="Private key of the certificate, in PEM.")
@click.option("--behind-proxy", is_flag=True, help="A proxy in front of this address does TLS.")
@click.option("--allow-host", "hosts", multiple=True, help="A name that browsers may use for this console.")
@click.option(
    "--max-viewers", default=64, show_default=True, type=click.IntRange(1, 1000), help="Browsers at once."
)
@click.option(
    "--max-hz",
    default=30.0,
    show_default=True,
    type=click.FloatRange(0.1, 120),
    help="Frames a second that a browser gets of a stream.",
)
@token_option
@connect_options
def console(
    to: ConnectOptions,
    opens: bool,
    port: int,
    host: str,
    token_file: Path | None,
    read_only: bool,
    roots: tuple[Path, ...],
    pipelines: tuple[str, ...],
    exports: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    behind_proxy: bool,
    hosts: tuple[str, ...],
    max_viewers: int,
    max_hz: float,
    token: str | None,
) -> None:
    """Watch and steer a running system in a browser: graph, frames, plots, ledger, recordings.

    Prints an address that carries a token, and serves it on this machine alone until Ctrl-C. The first
    address may give orders, the second only watches. Needs the extra `console`. It holds no lease and slows
    no stream down: it may be started and ended at any time.
    """
    check_extra()
    from ..console.access import ViewerRole
    from ..console.actions import request_handlers
    from ..console.server import ConsoleOptions, ConsoleServer
    from ..monitor.listener import reduced_gc

    options = ConsoleOptions(
        host="127.0.0.1" if host == "localhost" else host,
        port=port,
        tokens=_tokens(token_file, read_only),
        allowed_hosts=hosts,
        behind_proxy=behind_proxy,
        certificate=tls_cert,
        private_key=tls_key,
        max_viewers=max_viewers,
        max_hz=max_hz,
        recordings=tuple(root.absolute() for root in roots),
        pipelines=pipelines,
        exports=None if exports is None else exports.absolute(),
        config=to.config,
    )
    if exports is not None and not exports.is_dir():
        raise ConfigError(f"--exports {exports} is not a directory; make it first")
    _check_exposure(options, token_file)
    with reduced_gc(), to.context() as ctx:
        try:
            server = ConsoleServer(ctx, options, handlers=request_handlers(token))
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {options.host}:{port}: {error.strerror}; --port 0 uses any free port"
            ) from None
        url, watch_url = server.url(), server.url(ViewerRole.WATCH)
        if to.json_output:
            line = {"url": url, "watch_url": watch_url, "port": server.port, "read_only": read_only}
            click.echo(json.dumps(line))
        else:
            click.echo(f"console: {url}")
            if not read_only:
                click.echo(f"to watch only: {watch_url}")
            click.echo("Ctrl-C ends it; the system does not notice.", err=True)
        sys.stdout.flush()
        if opens:
            # Not with a token of the console: all users of this machine see the arguments of a command.
            webbrowser.open(server.opening_url())
        with contextlib.suppress(KeyboardInterrupt), _sigterm_as_interrupt():
            server.serve()


@contextlib.contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Handles SIGTERM like Ctrl-C: the server would raise it again, which ends the process at once."""
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def check_extra() -> None:
    """Raises ConfigError with the command that installs what is missing."""
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
        import websockets  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"the console needs {error.name}; install it with pip install 'aeron-tensorpool[console]'"
        ) from None


def _tokens(token_file: Path | None, read_only: bool) -> Tokens:
    from ..console.access import Tokens, new_token, read_token_file

    if token_file is not None:
        return read_token_file(token_file.expanduser(), read_only=read_only)
    return Tokens(steer=None if read_only else new_token())


def _check_exposure(options: ConsoleOptions, token_file: Path | None) -> None:
    """Beyond this machine a console needs a token that its operator chose, and TLS."""
    if (options.certificate is None) != (options.private_key is None):
        raise ConfigError("--tls-cert and --tls-key belong together; give both")
    if options.is_loopback:
        return
    if token_file is None:
        raise ConfigError(
            f"--host {options.host} can be reached from other machines; give --token-file FILE "
            "with a token that you made"
        )
    if options.certificate is None and not options.behind_proxy:
        raise ConfigError(
            f"--host {options.host} would send the token without encryption; give --tls-cert and --tls-key, "
            "or put a proxy with TLS in front and say so with --behind-proxy --allow-host NAME"
        )
