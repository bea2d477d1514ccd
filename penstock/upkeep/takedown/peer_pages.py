"""Delete and check a takedown's pages at the nodes of a cluster's cache."""

from collections.abc import Iterator, Sequence
from itertools import islice

from loader.cache.addresses import parse_peers
from loader.cache.peers.client import PeerClient
from loader.cache.peers.health import PeerFault
from loader.cache.peers.lifetime import cache_token
from loader.cache.peers.members import CacheMembers
from loader.cache.spec import PAGE_BYTES
from loader.errors import InvalidRuntime

from ...denied.record import Place, TakedownRecord
from .remains import page_prefixes

ANSWER_S = 600.0
"""Longest wait for a node: it looks at each of its pages."""
PREFIXES_MAX = 2**14
"""Prefixes in a request."""


def purge_peers(peers: str, record: TakedownRecord) -> int:
    """Delete a takedown's pages at each node; return their number.

    Raises: InvalidRuntime if a node does not answer, after the others did: run it again, or delete its folder.
    """
    pages = 0
    failed: list[str] = []
    for address, answer in _ask(peers, "DELETE", record):
        if isinstance(answer, int):
            pages += answer
        else:
            # Reported at the end: a node that is down must not keep the others' pages.
            failed.append(f"{address} ({answer})")
    if failed:
        names = ", ".join(failed)
        raise InvalidRuntime(
            f"nodes of the cache keep pages of the takedown, because they do not answer: {names}. Run the takedown "
            "again when they do, or delete their folders",
            what="nodes",
            given=failed,
        )
    return pages


def peer_places(record: TakedownRecord, lists: Sequence[str]) -> Iterator[Place]:
    """Yield a check result for each node. A node that does not answer is not clean."""
    for peers in lists:
        for address, answer in _ask(peers, "POST", record):
            place = {"check": "cache", "what": "a node of a cluster's cache", "path": address}
            if not isinstance(answer, int):
                yield {**place, "clean": False, "why": f"it does not answer: {answer}"}
            elif answer:
                why = f"{answer} pages are there: penstock takedown run --cache-peers"
                yield {**place, "clean": False, "why": why}
            else:
                yield {**place, "clean": True, "evidence": "no page of the shards"}


def _ask(peers: str, method: str, record: TakedownRecord) -> Iterator[tuple[str, int | str]]:
    """Yield each node's address with the number of its pages, or the reason why there is none."""
    client = PeerClient(cache_token(None), PAGE_BYTES, has_warnings=False)
    try:
        for address in CacheMembers(parse_peers(peers)).all():
            try:
                yield address, _pages(client, address, method, record)
            except PeerFault as error:
                yield address, str(error)
    finally:
        client.close()


def _pages(client: PeerClient, address: str, method: str, record: TakedownRecord) -> int:
    """Return the number of a node's pages. Raises: PeerFault."""
    prefixes = iter(sorted(page_prefixes(record)))
    pages = 0
    while block := list(islice(prefixes, PREFIXES_MAX)):
        lines = [f"{prefix}\n" for prefix in block]
        body = "".join(lines).encode()
        answer = client.ask(address, method, "/v1/objects", body=body, wait_s=ANSWER_S)
        if answer.status != 200 or not answer.text.isdigit():
            raise PeerFault(f"it answered {answer.status}: {answer.text[:200]}")
        pages += int(answer.text)
    return pages
