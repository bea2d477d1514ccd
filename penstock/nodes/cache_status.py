"""The figures of each node of a cluster's cache, asked for at once."""

from typing import Any, NamedTuple

from loader.cache.addresses import parse_peers
from loader.cache.peers.client import PeerClient
from loader.cache.peers.health import PeerFault
from loader.cache.peers.lifetime import cache_token
from loader.cache.peers.members import CacheMembers
from loader.cache.spec import PAGE_BYTES
from loader.json_text import DamagedJson, parse_json_object
from loader.storage.threads import DaemonPool

ANSWER_S = 5.0
"""Longest wait for a node: it counts its pages."""
THREADS = 32


class NodeStatus(NamedTuple):
    """One node of a cluster's cache."""

    address: str
    error: str
    """Why the figures are missing; empty if they are there."""
    pages: int = 0
    nbytes: int = 0
    limit_bytes: int = 0
    share: float = 0.0
    """Share of the wanted pages that the node has room for, 0 to 1."""
    hits: int = 0
    """Pages sent since the server began."""
    misses: int = 0
    """Pages asked for that were not there."""
    stored: int = 0
    """Pages received."""
    corrupt: int = 0
    """Pages whose file was damaged."""
    loaders: int = 0
    """Loaders that run on the node."""


def node_statuses(peers: str, folder: str | None) -> list[NodeStatus]:
    """Return the status of each peer, sorted by address. Raises: InvalidRuntime."""
    members = CacheMembers(parse_peers(peers)).all()
    client = PeerClient(cache_token(folder), PAGE_BYTES, has_warnings=False)
    try:
        with DaemonPool(THREADS, "penstock-cache") as pool:
            return list(pool.map(lambda address: _status(client, address), members))
    finally:
        client.close()


def _status(client: PeerClient, address: str) -> NodeStatus:
    """Return what a cache server answers, or why it has no status."""
    try:
        answer = client.ask(address, "GET", "/v1/status", wait_s=ANSWER_S)
    except PeerFault as error:
        return NodeStatus(address, str(error).removeprefix(f"{address}: "))
    if answer.status != 200:
        return NodeStatus(address, f"it answered {answer.status}: {answer.text[:200]}")
    try:
        return _parse(address, parse_json_object(answer.text))
    # Anything may listen at a wrong address.
    except (DamagedJson, ValueError, KeyError, TypeError):
        return NodeStatus(address, "its answer is not a status of a cache server")


def _parse(address: str, body: dict[str, Any]) -> NodeStatus:
    return NodeStatus(
        address,
        "",
        pages=int(body["pages"]),
        nbytes=int(body["bytes"]),
        limit_bytes=int(body["limit_bytes"] or 0),
        share=float(body["share"]),
        hits=int(body["hits"]),
        misses=int(body["misses"]),
        stored=int(body["stored"]),
        corrupt=int(body["corrupt"]),
        loaders=int(body["loaders"]),
    )
