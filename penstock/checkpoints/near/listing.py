"""List the near steps on one node, or on all nodes of a cluster."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from loader.cache.addresses import parse_peers
from loader.cache.peers.lifetime import cache_token
from loader.cache.peers.members import CacheMembers
from loader.cache.peers.near_client import NearClient, NearFault
from loader.cache.peers.near_files import FOLDER, NearFiles
from loader.errors import InvalidRuntime

from ..marker import Checkpoint
from .choice import NearNode, assess_near_steps
from .inventory import list_nodes, near_node


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedNearStep:
    """One near step of a run."""

    run: str
    step: int
    checkpoint: Checkpoint | None
    """None without a marker that can be read."""
    nbytes: int
    """Bytes on the nodes, all copies."""
    nodes: int
    """Nodes with a file of the step."""
    problem: str
    """Why a start passes it over, or ""."""


def nodes_of_folder(path: str, run: str | None) -> dict[str, list[NearNode]]:
    """Return run -> this node's near steps. path: folder of its node cache. Raises: InvalidRuntime; StoreError."""
    if not os.path.isdir(path):
        raise InvalidRuntime(f"{path} is not a folder; pass the path of a node cache")
    folder = os.path.join(path, FOLDER)
    if not os.path.isdir(folder):
        return {}
    files = NearFiles(folder)
    nodes: dict[str, list[NearNode]] = {}
    for name in files.runs():
        if run is None or name == run:
            near = files.run(name)
            node = near_node(path, near.markers, near.files)
            nodes[name] = [node]
    return nodes


def nodes_of_peers(
    peers: str,
    run: str | None,
    path: str | None = None,
) -> dict[str, list[NearNode]]:
    """Return run -> the near steps of each node. path: folder with the token; None for PENSTOCK_CACHE_TOKEN.

    Raises: InvalidRuntime if a node does not answer.
    """
    members = CacheMembers(parse_peers(peers))
    addresses = members.all()
    client = NearClient(cache_token(path))
    try:
        runs: set[str] = set()
        for address in addresses:
            runs |= client.runs(address).keys()
        nodes: dict[str, list[NearNode]] = {}
        for name in sorted(runs):
            if run is None or name == run:
                nodes[name] = list_nodes(addresses, name, client)
        return nodes
    except NearFault as error:
        raise InvalidRuntime(
            f"a node of {peers} does not answer: {error}. Leave it out of --peers"
        ) from error
    finally:
        client.close()


def list_near_steps(
    nodes: Mapping[str, Sequence[NearNode]],
    *,
    is_cluster: bool,
) -> Iterator[ListedNearStep]:
    """Yield the near steps of each run, ascending. is_cluster: the nodes are all that there are."""
    for run, holders in nodes.items():
        marked: dict[int, ListedNearStep] = {}
        # The preferred attempt comes last, and replaces the others of its step.
        for near in reversed(assess_near_steps(holders, run)):
            problem = near.problem
            if not is_cluster and near.marker.checkpoint is not None:
                problem = ""  # other nodes have the other parts
            marked[near.marker.step] = _list_step(
                holders,
                run,
                near.marker.step,
                near.marker.checkpoint,
                problem,
            )
        unmarked: set[int] = set()
        for node in holders:
            unmarked |= node.files.keys() - marked.keys()
        for step in sorted(unmarked | marked.keys()):
            listed = marked.get(step)
            if listed is None:
                problem = "no marker: the save is running, or was killed"
                listed = _list_step(holders, run, step, None, problem)
            yield listed


def _list_step(
    nodes: Sequence[NearNode],
    run: str,
    step: int,
    checkpoint: Checkpoint | None,
    problem: str,
) -> ListedNearStep:
    """Return the row of a step. checkpoint, problem: of its marker; None and why if no marker can be read."""
    # A part counts on its own node and on the partner that has its copy: both take the disks' room.
    nbytes = 0
    n_nodes = 0
    for node in nodes:
        sizes = node.files.get(step, {})
        nbytes += sum(sizes.values())
        if sizes:
            n_nodes += 1
    return ListedNearStep(
        run=run,
        step=step,
        checkpoint=checkpoint,
        nbytes=nbytes,
        nodes=n_nodes,
        problem=problem,
    )
