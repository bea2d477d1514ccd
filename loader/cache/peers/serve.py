"""Serve a folder's pages to other nodes: `penstock cache serve`, and the process that a loader starts."""

import argparse
import logging
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from ...errors import InvalidRuntime, PenstockError
from ..addresses import format_address, is_loopback, split_address
from ..spec import NodeCache
from .environment import TOKEN_VARIABLE
from .handler import PageAnswers
from .lifetime import (
    TOKEN,
    FolderServed,
    ServerRecord,
    cache_token,
    folder_lock,
    live_server,
    write_record,
)
from .server import PeerServer

logger = logging.getLogger(__name__)

UNUSED_S = 60.0
"""Seconds after the last loader at which a server that a loader started ends."""
BEAT_S = 5.0
BACKLOG = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """Settings of one server."""

    cache: NodeCache
    """Folder, limit and page size."""
    listen: str
    """HOST:PORT to listen on; port 0 chooses one."""
    address: str | None = None
    """HOST:PORT that its peers use; None is where it listens."""
    while_used: bool = False
    """True ends the server UNUSED_S seconds after the last loader of the folder."""


def serve(settings: ServeSettings) -> None:
    """Serve until SIGTERM or SIGINT. Raises: as `open_server`."""
    _allow_connections()
    with open_server(settings) as server:

        def stop(number: int, frame: FrameType | None) -> None:
            server.stop()

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        server.run()


def _allow_connections() -> None:
    """Let this process have as many open files as the system permits: MOST_CONNECTIONS, and pages."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextmanager
def open_server(settings: ServeSettings) -> Iterator[PeerServer]:
    """Yield the server of a folder, which has the folder's lock and its port. Call `run`.

    Raises: InvalidRuntime if the folder may not be a cache, has a server, or needs a token; for a port in use.
    """
    folder = os.fspath(settings.cache.path)
    answers = PageAnswers(settings.cache)
    try:
        token = cache_token(folder)
        host, port = split_address(settings.listen, least_port=0)
        if token is None and not is_loopback(host):
            raise InvalidRuntime(
                f"a server without a token listens on this machine only, and {settings.listen} is open to others: set "
                f"{TOKEN_VARIABLE}, or write {os.path.join(folder, TOKEN)} with mode 600, alike on all nodes"
            )
        with folder_lock(folder):
            listener = _listener(host, port)
            server = PeerServer(listener, answers, token)
            bound = listener.getsockname()
            host, port = split_address(settings.address or settings.listen, least_port=0)
            address = format_address(host, port or int(bound[1]))
            beat = threading.Thread(target=_beat, args=(answers, server, settings.while_used), daemon=True)
            beat.start()
            write_record(folder, ServerRecord(address, os.getpid(), time.time()))
            logger.warning("node cache %s: serving at %s", folder, address)
            yield server
    except FolderServed:
        record = live_server(folder)
        where = "" if record is None else f" at {record.address}, process {record.pid}"
        raise InvalidRuntime(
            f"the cache folder {folder} has a server already{where}: use that one, or another folder"
        ) from None
    finally:
        answers.close()


def _listener(host: str, port: int) -> socket.socket:
    """Return a socket that listens. port: 0 for any. Raises: InvalidRuntime."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise InvalidRuntime(f"cannot listen on {format_address(host, port)}: {error.strerror}") from error
    return listener


def _beat(answers: PageAnswers, server: PeerServer, while_used: bool) -> None:
    """Show that the server runs; stop it UNUSED_S after the last loader if it runs `while_used`."""
    used_s = time.monotonic()
    while not server.ended.wait(BEAT_S):
        answers.beat()
        now_s = time.monotonic()
        if answers.is_used():
            used_s = now_s
        if while_used and now_s - used_s > UNUSED_S:
            server.stop()


def main(arguments: list[str]) -> int:
    """Run the server of the command line; return its exit status."""
    parser = argparse.ArgumentParser("python -m loader.cache.peers.serve")
    parser.add_argument("--path", required=True)
    parser.add_argument("--listen", required=True)
    parser.add_argument("--address")
    parser.add_argument("--while-used", action="store_true")
    parser.add_argument("--limit-bytes", type=int)
    parser.add_argument(
        "--page-bytes", type=int, default=NodeCache.__dataclass_fields__["page_bytes"].default
    )
    parser.add_argument("--shared", action="store_true")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    try:
        cache = NodeCache(
            path=options.path,
            limit_bytes=options.limit_bytes,
            page_bytes=options.page_bytes,
            shared=options.shared,
        )
        settings = ServeSettings(
            cache=cache, listen=options.listen, address=options.address, while_used=options.while_used
        )
        serve(settings)
    except PenstockError as error:
        logger.error("%s", error)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
