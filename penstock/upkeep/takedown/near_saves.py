"""Find near saves of models that were trained on a takedown's samples, in node caches and at their servers."""

import os
from collections.abc import Collection, Iterator, Sequence

from loader.cache.addresses import parse_peers
from loader.cache.peers.lifetime import cache_token
from loader.cache.peers.members import CacheMembers
from loader.cache.peers.near_client import NearClient, NearFault
from loader.cache.peers.near_files import FOLDER, NearFiles, marker_key

from ...denied.record import Place, TakedownRecord

Marker = tuple[str, int, bytes]
"""Run, step, and the marker's bytes."""


def near_places(
    record: TakedownRecord,
    caches: Sequence[str],
    cache_peers: Sequence[str],
) -> Iterator[Place]:
    """Yield a place for each near save whose versions have the samples. A node that does not answer is not clean.

    caches: folders of node caches. cache_peers: lists of servers of a cluster's cache.
    """
    ids = [id.encode() for id in sorted(record.versions())]
    if not ids:
        return
    for folder in caches:
        near = os.path.join(folder, FOLDER)
        if os.path.isdir(near):
            yield from _places(near, _folder_markers(near), ids)
    for peers in cache_peers:
        client = NearClient(cache_token(None))
        try:
            for address in CacheMembers(parse_peers(peers)).all():
                yield from _node_places(client, address, ids)
        finally:
            client.close()


def _node_places(
    client: NearClient,
    address: str,
    ids: Collection[bytes],
) -> Iterator[Place]:
    try:
        yield from _places(address, _node_markers(client, address), ids)
    except NearFault as error:
        yield {
            "check": "cache",
            "what": "near saves of a node",
            "path": address,
            "clean": False,
            "why": f"it does not answer: {error}",
        }


def _places(
    where: str,
    markers: Iterator[Marker],
    ids: Collection[bytes],
) -> Iterator[Place]:
    for run, step, data in markers:
        if any(id in data for id in ids):
            yield {
                "check": "told",
                "what": "a near save of a model that was trained on a version with the samples",
                "path": f"{where}/{marker_key(run, step)}",
                "clean": False,
                "why": "models are not changed: the run's next checkpoint deletes it; delete it if the run has ended",
            }


def _folder_markers(near: str) -> Iterator[Marker]:
    files = NearFiles(near)
    for run in files.runs():
        markers = files.run(run).markers
        for step, data in markers.items():
            yield run, step, data


def _node_markers(client: NearClient, address: str) -> Iterator[Marker]:
    """Yield the markers of a node. Raises: NearFault."""
    for run in sorted(client.runs(address)):
        markers = client.run(address, run).markers
        for step, data in markers.items():
            yield run, step, data
