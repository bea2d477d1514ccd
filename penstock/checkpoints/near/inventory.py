"""Gather the near steps of a run on all nodes: nodes of the ranks, and peers that left the job and still answer.

A marker of a thousand ranks has megabytes and is on every node. So the ranks compare digests first, and send only the
markers that the first rank's node lacks.
"""

import logging
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from loader.cache.peers.lifetime import live_server
from loader.cache.peers.members import CacheMembers
from loader.cache.peers.near_client import NearClient, NearFault
from loader.cache.peers.near_files import NearFile, NearFiles, NearRun, near_folder
from loader.cache.peers.training_nodes import node_name
from loader.cache.spec import NodeCache
from loader.errors import StoreError

from ..marker import sha256
from ..ranks import from_all_ranks, map_in_order
from .choice import NearNode

_log = logging.getLogger(__name__)

NODES_AT_ONCE = 16
"""Nodes outside the job that are asked at a time."""

Markers = dict[int, bytes]


class Presence(NamedTuple):
    """The near steps of one rank's node, without their bytes."""

    place: str
    """Node and folder, alike for ranks that share them."""
    address: str
    """HOST:PORT of the node's server; "" without one."""
    markers: tuple[tuple[int, str], ...]
    """(step, SHA-256) of its markers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NearInventory:
    """The near steps of all nodes. On other ranks than the first, `nodes` is empty."""

    own: str
    """Name of this rank's node among the nodes."""
    is_first_rank: bool
    is_first_of_node: bool
    """True on one rank of each node."""
    nodes: Sequence[NearNode]
    """Nodes of the ranks."""
    addresses: Collection[str]
    """Addresses of all ranks' nodes."""


def gather_inventory(
    cache: NodeCache,
    run: str,
    group: Any,
) -> NearInventory:
    """Return what the nodes of all ranks have. Every rank calls it. group: None for a single process."""
    folder = near_folder(cache)
    own = _own_files(folder, run)
    server = live_server(os.fspath(cache.path))
    address = ""
    if server is not None:
        address = server.address
    host = node_name()
    presence = Presence(
        f"{host}:{folder}",
        address,
        _digests(own.markers),
    )
    everyone = from_all_ranks(presence, group)
    rank = _rank(group)
    markers = _markers(own.markers, everyone, group)
    places = [other.place for other in everyone]
    first_of_node = places.index(presence.place)
    is_first_of_node = rank == first_of_node
    # The ranks of a node share its folder: one list is enough.
    files: Sequence[NearFile] = ()
    if is_first_of_node:
        files = own.files
    # Gathered, not exchanged: only the first rank chooses, and a list may have a row per part.
    files_by_rank = _gather(files, group)
    nodes: list[NearNode] = []
    if rank == 0:
        nodes = _nodes(everyone, markers, files_by_rank)
    return NearInventory(
        own=_node_label(presence),
        is_first_rank=rank == 0,
        is_first_of_node=is_first_of_node,
        nodes=nodes,
        addresses={other.address for other in everyone},
    )


def list_nodes(addresses: Sequence[str], run: str, client: NearClient) -> list[NearNode]:
    """Return what servers have of a run. One that does not answer costs a warning."""

    def ask(address: str) -> NearNode | None:
        try:
            files = client.run(address, run)
        except NearFault as error:
            _log.warning("near saves: a node does not answer and counts as lost: %s", error)
            return None
        return near_node(address, files.markers, files.files)

    answers = map_in_order(ask, addresses, at_once=NODES_AT_ONCE)
    return [node for node in answers if node is not None]


def near_node(name: str, markers: Markers, files: Sequence[NearFile]) -> NearNode:
    sizes: dict[int, dict[str, int]] = {}
    for file in files:
        of_step = sizes.setdefault(file.step, {})
        of_step[file.name] = file.nbytes
    return NearNode(name=name, markers=markers, files=sizes)


def _own_files(folder: str, run: str) -> NearRun:
    """Return the files of this node; none if its disk fails."""
    try:
        return NearFiles(folder).run(run)
    except (StoreError, OSError) as error:
        _log.warning("near saves in %s cannot be read and count as lost: %s", folder, error)
        return NearRun({}, [])


def _digests(markers: Markers) -> tuple[tuple[int, str], ...]:
    pairs: list[tuple[int, str]] = []
    for step in sorted(markers):
        digest = sha256(markers[step])
        pairs.append((step, digest))
    return tuple(pairs)


def _node_label(presence: Presence) -> str:
    return presence.address or presence.place


def _nodes(
    everyone: Sequence[Presence],
    markers: dict[str, bytes],
    files_by_rank: Sequence[Sequence[NearFile]],
) -> list[NearNode]:
    """Return the nodes of the ranks. Parts of a node without a server can be read on that node only."""
    nodes: dict[str, NearNode] = {}
    places = {presence.place for presence in everyone}
    is_one_node = len(places) == 1
    pairs = zip(everyone, files_by_rank, strict=True)
    for presence, files in pairs:
        # Ranks of one node see the same folder.
        if presence.place in nodes:
            continue
        own: Markers = {}
        for step, digest in presence.markers:
            if digest in markers:
                own[step] = markers[digest]
        if not presence.address and not is_one_node:
            if files:
                _log.warning("near saves of %s count as lost: its cache has no server", presence.place)
            files = ()
        nodes[presence.place] = near_node(_node_label(presence), own, files)
    return list(nodes.values())


def other_nodes(
    cache: NodeCache,
    run: str,
    addresses_of_ranks: Collection[str],
    client: NearClient,
) -> list[NearNode]:
    """Return the nodes among the cache's peers that have no rank. One that does not answer counts as lost.

    Raises: InvalidRuntime if the peers cannot be found.
    """
    if cache.peers is None:
        return []
    members = CacheMembers(tuple(cache.peers))
    addresses = [address for address in members.all() if address not in addresses_of_ranks]
    return list_nodes(addresses, run, client)


def _markers(own: Markers, everyone: Sequence[Presence], group: Any) -> dict[str, bytes]:
    """Return digest -> the marker's bytes, of all markers. Every rank calls it."""
    by_digest: dict[str, bytes] = {}
    for data in own.values():
        digest = sha256(data)
        by_digest[digest] = data
    owners: dict[str, int] = {}
    for rank, presence in enumerate(everyone):
        for _, digest in presence.markers:
            # Every rank computes the same owners, so all of them enter the broadcasts in one order.
            owners.setdefault(digest, rank)
    for digest in sorted(owners):
        # The lowest rank that has it sends it; the first rank needs no copy of its own.
        if owners[digest] != 0:
            data = by_digest.get(digest, b"")
            data = _broadcast(data, owners[digest], group)
            by_digest[digest] = data
    return by_digest


def _rank(group: Any) -> int:
    if group is None:
        return 0
    from torch import distributed

    return distributed.get_rank(group)


def _broadcast(data: bytes, source: int, group: Any) -> bytes:
    """Return the bytes of rank `source` on every rank of the group."""
    from torch import distributed

    message: list[Any] = [data]
    rank = distributed.get_global_rank(group, source)
    distributed.broadcast_object_list(message, src=rank, group=group)
    received: bytes = message[0]
    return received


def _gather(files: Sequence[NearFile], group: Any) -> list[Sequence[NearFile]]:
    """Return the files of each rank on the first rank; nothing on the others."""
    if group is None:
        return [files]
    from torch import distributed

    by_rank: list[Any] | None = None
    if distributed.get_rank(group) == 0:
        by_rank = [None] * distributed.get_world_size(group)
    first = distributed.get_global_rank(group, 0)
    distributed.gather_object(files, by_rank, dst=first, group=group)
    return by_rank or []
