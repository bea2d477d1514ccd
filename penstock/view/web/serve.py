"""The `penstock view` server on a loopback port or a Unix socket; its announced address has the token."""

import gc
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread, current_thread, main_thread
from typing import TYPE_CHECKING, Any

import loader
from loader.dataset.versions.samples_table import import_polars
from loader.errors import InvalidRuntime, MissingDependency

from ..kinds.stored_bytes import limit_heaps
from ..open_data import OpenData
from ..raw_source import RawSource
from ..replays.metrics_file import MetricsFile

if TYPE_CHECKING:
    from starlette.types import ASGIApp
    from uvicorn import Server

PORT = 8497
END_S = 3
"""Seconds that shutdown waits for responses."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


def serve(
    root: loader.Root,
    *,
    first: str = "",
    recipe: str | None = None,
    host: str = "127.0.0.1",
    port: int = PORT,
    unix_socket: Path | None = None,
    prefix: str = "",
    allow_hosts: Sequence[str] = (),
    ui: str = "",
    raw: RawSource | None = None,
    metrics: Mapping[str, MetricsFile] | None = None,
    writes: bool = False,
    announce: Callable[[str], object] = print,
) -> None:
    """Serve the viewer until SIGINT or SIGTERM. first: first page's relative address.

    Raises: InvalidRuntime if the port is unavailable or the prefix invalid; MissingDependency.
    """
    limit_heaps()
    check_packages()
    preparing = Thread(target=_prepare, name="penstock-view-prepare", daemon=True)
    preparing.start()
    from .app import application
    from .guard import new_token

    _check_prefix(prefix)
    token = new_token()
    listening = _bind(host, port, unix_socket)
    own_port = 0
    if not unix_socket:
        own_port = listening.getsockname()[1]
    opened = OpenData(root, recipe, metrics=metrics, raw=raw)
    app = application(
        opened,
        token=token,
        hosts=_hosts(host, own_port, allow_hosts),
        cookie=f"penstock-{own_port or 'socket'}",
        prefix=prefix,
        ui=ui,
        writes=writes,
    )
    server = _server(app, opened.stop)
    # A signal of any moment must let the server end: uvicorn has its handlers only once it runs.
    previous = _replace_handlers(dict.fromkeys(_SIGNALS, server.handle_exit))
    try:
        opened.start()
        # A page that is asked for meanwhile would take as long, and share the processor.
        preparing.join()
        # A full collection of 100,000 objects of modules takes 40 ms, in the middle of a page.
        gc.freeze()
        _announce_address(announce, first, token, host, own_port, unix_socket, prefix)
        # A signal that came before: uvicorn starts, finds it, and returns.
        server.run(sockets=[listening])
    finally:
        _replace_handlers(previous)
        opened.close()
        if unix_socket:
            unix_socket.unlink(missing_ok=True)


def _check_prefix(prefix: str) -> None:
    """Raise InvalidRuntime for a prefix that is no path of an address."""
    if prefix and (not prefix.startswith("/") or prefix.endswith("/")):
        raise InvalidRuntime(
            f"--prefix {prefix!r}; pass a path such as /proxy/8497, without a slash at its end"
        )


def _prepare() -> None:
    """Load the modules and templates of the first page before its request."""
    from .page import compile_templates

    with suppress(MissingDependency):  # a page that needs polars shows the error
        import_polars()
    compile_templates()


def check_packages() -> None:
    """Raise MissingDependency, which names the extra to install."""
    try:
        import jinja2  # noqa: F401
        import uvicorn  # noqa: F401

        from . import app  # noqa: F401
    except ImportError as error:
        raise MissingDependency(
            f"penstock view needs the package {str(error.name).partition('.')[0]!r}, which is not installed: "
            "pip install 'penstock-data[view]'"
        ) from error


def _server(app: "ASGIApp", stop: Callable[[], None]) -> "Server":
    """Return a server whose signal handler lets it end.

    stop: called by the handler, to end whatever a page waits for.
    """
    import uvicorn

    from .guard import MOST_HEAD_BYTES

    # h11 limits the size of a request's head; httptools does not.
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",  # the application has none
        h11_max_incomplete_event_size=2 * MOST_HEAD_BYTES,
        timeout_graceful_shutdown=END_S,
        log_level="warning",
        access_log=False,
        server_header=False,
    )
    server = uvicorn.Server(config)

    def end(number: int, frame: object) -> None:
        stop()
        server.force_exit = server.should_exit  # a second signal forces the exit
        server.should_exit = True

    # uvicorn's own handler re-raises the signal on exit, before leases and the socket are released.
    server.handle_exit = end  # type: ignore[assignment,method-assign]
    return server


def _replace_handlers(handlers: Mapping[signal.Signals, Any]) -> dict[signal.Signals, Any]:
    """Install signal handlers, and return those before; {} outside the main thread, which has none."""
    if current_thread() is not main_thread():
        return {}
    return {number: signal.signal(number, handler) for number, handler in handlers.items()}


def _hosts(host: str, port: int, more: Sequence[str]) -> set[str]:
    """Return accepted Host headers. port: 0 for a Unix socket, which ssh -L reaches from any port."""
    loopback = set(_LOOPBACK) if not port or host in _LOOPBACK else {host, *_LOOPBACK}
    return {form.lower() for name in {*more, *loopback} for form in (name, f"{name}:{port or PORT}")}


def _bind(host: str, port: int, unix_socket: Path | None) -> socket.socket:
    if unix_socket is None:
        if not 0 <= port < 2**16:
            raise InvalidRuntime(f"--port {port}; 1 to 65535, or 0 for a free one")
        try:
            return socket.create_server(
                (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
            )
        except OSError as error:
            raise InvalidRuntime(
                f"--port {port} on {host} is unavailable ({error.strerror}); pass another, or 0 for a free one"
            ) from error
    listening = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)  # only the socket's owner may connect
    try:
        listening.bind(str(unix_socket))
    except OSError as error:
        raise InvalidRuntime(
            f"--socket {unix_socket} is unavailable ({error.strerror}); pass a path that does not exist, in "
            "a folder of yours"
        ) from error
    finally:
        os.umask(before)
    listening.listen(128)
    return listening


def _announce_address(
    announce: Callable[[str], object],
    first: str,
    token: str,
    host: str,
    port: int,
    unix_socket: Path | None,
    prefix: str,
) -> None:
    join = "&" if "?" in first else "?"
    shown = f"[{host}]" if ":" in host else host
    announce(
        f"http://{'127.0.0.1' if unix_socket else shown}:{port or PORT}{prefix}/{first}{join}token={token}"
    )
    node = socket.gethostname()
    if unix_socket:
        announce(f"  from another machine first: ssh -L {PORT}:{unix_socket.resolve()} {node}")
    elif host in _LOOPBACK:
        announce(f"  from another machine first: ssh -L {port}:127.0.0.1:{port} {node}")
    announce("  Ctrl-C ends it")
