"""The cache of the nodes of one training: its ranks tell each other the addresses of their servers."""

import os
import secrets
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ...errors import InvalidRuntime, PenstockError
from ..addresses import format_address, is_loopback, split_address
from ..pages import make_place
from ..spec import NodeCache
from .environment import TOKEN_VARIABLE, master_host, slurm_node
from .lifetime import cache_token, last_server, live_server, start_server, write_token
from .members import is_local

DISCARD_PORT = 9

Exchange = Callable[[Any], list[Any]]
"""A value of this rank -> the values of all ranks, in their order. Every rank calls it equally often."""


class _Node(NamedTuple):
    """One rank's node."""

    name: str
    token: str | None
    """The token that the node has already."""
    error: str


class _NodeServer(NamedTuple):
    """The server that a rank started."""

    address: str
    """Empty if another rank of the node started it."""
    error: str


def join_nodes(spec: NodeCache, rank: int, exchange: Exchange) -> NodeCache:
    """Start a server on each node of a training, unless one runs, and return the cache with all as peers.

    If no node has a token, the first rank draws one, and each node keeps it in a file of mode 600.

    rank: of this process. Raises: InvalidRuntime on every rank if a node has no server in the end.
    """
    nodes: list[_Node] = exchange(_this_node(spec))
    _raise_first(node.error for node in nodes)
    tokens = {node.token for node in nodes if node.token is not None}
    if len(tokens) > 1:
        raise InvalidRuntime(
            f"the nodes have {len(tokens)} different tokens: set one {TOKEN_VARIABLE} for all, or delete the file "
            "`token` in the folder of each cache"
        )
    drawn = tokens.pop() if tokens else secrets.token_urlsafe(32)
    token: str = exchange(drawn)[0]
    names = [node.name for node in nodes]
    server = _NodeServer("", "")
    is_one_node = len(set(names)) == 1
    is_one_machine = is_one_node or is_loopback(master_host())
    # One rank of each node starts its server; the others wait in the exchange.
    if names.index(names[rank]) == rank:
        server = _start(spec, token, is_one_machine=is_one_machine)
    servers: list[_NodeServer] = exchange(server)
    _raise_first(one.error for one in servers)
    addresses = {one.address for one in servers if one.address}
    return replace(spec, peers=tuple(sorted(addresses)))


def node_name() -> str:
    """Return the name of this node: Slurm's, else the host's."""
    return slurm_node() or socket.gethostname()


def _this_node(spec: NodeCache) -> _Node:
    """Return this node's name and token, or its error: ranks raise only after all have exchanged theirs."""
    name = node_name()
    folder = os.fspath(spec.path)
    try:
        make_place(folder, shared=spec.shared)
        return _Node(name, cache_token(folder), "")
    except (PenstockError, OSError) as error:
        return _Node(name, None, f"{name}: {error}")


def _start(spec: NodeCache, token: str, *, is_one_machine: bool) -> _NodeServer:
    """Start the server of this node. is_one_machine: all ranks run here, so that no other machine connects."""
    folder = os.fspath(spec.path)
    try:
        record = live_server(folder)
        if record is None:
            if cache_token(folder) is None:
                write_token(folder, token)
            host = "127.0.0.1"
            if not is_one_machine:
                host = own_address()
            address = format_address(host, _last_port(folder, host))
            record = start_server(
                folder,
                listen_address(address),
                address,
                server_arguments(spec),
            )
        host, _ = split_address(record.address)
        if is_loopback(host) and not is_one_machine:
            raise InvalidRuntime(
                f"the server of {folder} serves this machine only, at {record.address}; end it (process {record.pid}), "
                "and the training starts one that the other nodes reach"
            )
    except (PenstockError, OSError) as error:
        return _NodeServer("", f"{node_name()}: {error}")
    return _NodeServer(record.address, "")


def _last_port(folder: str, host: str) -> int:
    """Return the port of the folder's server before, if it is free; else 0, with which the server chooses one.

    If nodes share a host, the port decides which pages a folder is asked for.
    """
    record = last_server(folder)
    if record is None:
        return 0
    try:
        _, port = split_address(record.address)
    except InvalidRuntime:
        return 0  # the file is damaged
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            # As the server binds: a connection that has just ended does not occupy the port.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
        except OSError:
            return 0
    return port


def listen_address(address: str) -> str:
    """Return where a server listens that the others reach at `address`: on all interfaces, beyond this machine."""
    host, port = split_address(address, least_port=0)
    if is_loopback(host):
        return address
    # Without a token the server refuses to listen beyond this machine.
    every = "0.0.0.0"
    if ":" in host:
        every = "::"
    return format_address(every, port)


def server_arguments(spec: NodeCache) -> list[str]:
    """Return the arguments of `loader.cache.peers.serve` for a folder's settings."""
    arguments = ["--page-bytes", str(spec.page_bytes)]
    if spec.limit_bytes is not None:
        arguments += ["--limit-bytes", str(spec.limit_bytes)]
    if spec.shared:
        arguments.append("--shared")
    return arguments


def own_address() -> str:
    """Return the address of this node that the training's first node reaches."""
    for host in (master_host(), socket.gethostname()):
        if not host:
            continue
        try:
            infos = socket.getaddrinfo(host, DISCARD_PORT, type=socket.SOCK_DGRAM)
        except OSError:
            continue
        for family, kind, protocol, _, address in infos:
            with socket.socket(family, kind, protocol) as probe:
                try:
                    # Sends nothing: the kernel chooses the interface that leads there.
                    probe.connect(address)
                except OSError:
                    continue
                own = str(probe.getsockname()[0])
            if not is_loopback(own):
                return own
    return _first_interface()


def _first_interface() -> str:
    """Return the address of the interface with the default route. Raises: InvalidRuntime without one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Reserved for documentation: it only selects the default route.
            probe.connect(("192.0.2.1", DISCARD_PORT))
            return str(probe.getsockname()[0])
        except OSError:
            raise InvalidRuntime(
                "this machine has no address that other nodes reach; give loader.NodeCache(peers=[...]) the addresses"
            ) from None


def _raise_first(errors: Iterable[str]) -> None:
    for error in errors:
        if error:
            raise InvalidRuntime(f"the cluster's cache cannot start: {error}")


def member_address(spec: NodeCache, members: Sequence[str]) -> str | None:
    """Return this node's address among the members, whose server runs from now on; None if it is none of them."""
    folder = os.fspath(spec.path)
    record = live_server(folder)
    if record is not None and record.address in members:
        return record.address
    local = [address for address in members if is_local(address)]
    names = ", ".join(members)
    if record is not None:
        raise InvalidRuntime(
            f"the cache server of {folder} serves at {record.address}, which is none of the peers {names}: give the "
            "peers the address that `penstock cache serve --address` has"
        )
    if not local:
        return None
    if len(local) > 1:
        raise InvalidRuntime(
            f"several of the peers {names} are this machine: start `penstock cache serve` for each folder before the "
            "training"
        )
    (address,) = local
    start_server(
        folder,
        listen_address(address),
        address,
        server_arguments(spec),
    )
    return address
