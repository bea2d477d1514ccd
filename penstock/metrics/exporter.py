"""Serve collectors of metrics to Prometheus by HTTP, or write them to a file for node_exporter."""

import ipaddress
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app, write_to_textfile
from prometheus_client.registry import Collector

from loader.errors import InvalidRuntime

_log = logging.getLogger("penstock.metrics")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
IDLE_S = 10.0
"""Seconds after which a connection that sends nothing ends."""
PATHS = ("/", "/metrics")
Answer = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
"""WSGI application."""


def build_registry(collectors: Sequence[Collector]) -> CollectorRegistry:
    """Return a registry of collectors; it reads no store."""
    # Else it would collect once at registration.
    registry = CollectorRegistry(auto_describe=False)
    for collector in collectors:
        registry.register(collector)
    return registry


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT. Raises: ValueError."""
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) >= 2**16:
        raise ValueError(f"{text!r}; accepted: HOST:PORT, e.g. 127.0.0.1:9464")
    return host.strip("[]"), int(port)


def write_textfile(collectors: Sequence[Collector], path: str) -> None:
    """Write the metrics into a file, whole or not at all. Raises: InvalidRuntime."""
    try:
        write_to_textfile(path, build_registry(collectors))
    except OSError as error:
        raise InvalidRuntime(f"--textfile {path} cannot be written: {error.strerror}") from error


def serve(
    collectors: Sequence[Collector],
    address: tuple[str, int],
    *,
    allow_hosts: Sequence[str] = (),
    announce: Callable[[str], object] = print,
) -> None:
    """Serve until SIGINT or SIGTERM. allow_hosts: further host names of this server. Raises: InvalidRuntime."""
    host, port = address
    registry = build_registry(collectors)
    answer = guard(make_wsgi_app(registry), host, allow_hosts)
    # The handlers only set it: a scrape that runs may hold the collectors' lock.
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    try:
        server = make_server(
            host,
            port,
            answer,
            _server_class(host),
            _Handler,
        )
    except OSError as error:
        raise InvalidRuntime(
            f"--listen {host}:{port} is unavailable ({error.strerror}); pass another"
        ) from error
    thread = threading.Thread(target=server.serve_forever, name="penstock-metrics", daemon=True)
    thread.start()
    shown = host
    if ":" in host:
        shown = f"[{host}]"
    announce(f"metrics at http://{shown}:{server.server_port}/metrics")
    ended.wait()
    server.shutdown()
    server.server_close()
    thread.join()


class _Handler(WSGIRequestHandler):
    timeout = IDLE_S

    def log_message(self, format: str, *args: Any) -> None:
        """Log no line per scrape."""


class _ScrapeServer(ThreadingMixIn, WSGIServer):
    # A scrape that waits for its store does not hold up the end of the process.
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.info("a connection of %s ended early", client_address)


class _ServerOfIpv6(_ScrapeServer):
    address_family = socket.AF_INET6


def _server_class(host: str) -> type[_ScrapeServer]:
    if ":" in host:
        return _ServerOfIpv6
    return _ScrapeServer


def guard(answer: Answer, host: str, allow_hosts: Sequence[str]) -> Answer:
    """Return an application that only serves GET of /metrics, under this server's names.

    A page of another site that a browser shows reaches this port under its own name, so other names are refused. An
    address is no such name.
    """
    names = (*_LOOPBACK, host, *allow_hosts)
    accepted = {name.lower() for name in names}
    takes_addresses = host not in _LOOPBACK

    def guard(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        header = environ.get("HTTP_HOST", "")
        name = _host_name(header)
        if name not in accepted and not (takes_addresses and _is_address(name)):
            names = ", ".join(sorted(accepted))
            text = f"Host {name[:200]!r} is not this server's; accepted: {names}. Others: --allow-host NAME"
            return _refuse(start_response, "421 Misdirected Request", text)
        if environ["REQUEST_METHOD"] != "GET":
            return _refuse(start_response, "405 Method Not Allowed", "accepted: GET")
        if environ["PATH_INFO"] not in PATHS:
            return _refuse(start_response, "404 Not Found", "metrics are at /metrics")
        return answer(environ, start_response)

    return guard


def _refuse(start_response: Callable[..., Any], status: str, text: str) -> Iterable[bytes]:
    start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
    return [f"{text}\n".encode()]


def _host_name(header: str) -> str:
    """Return a Host header's name or address, without its port, in lower case."""
    # "[::1]:9464" and "lab:9464".
    lowered = header.lower()
    if lowered.startswith("["):
        return lowered[1:].partition("]")[0]
    return lowered.partition(":")[0]


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
