"""A takedown deletes its pages at every node of a cluster's cache, and a proof names nodes that do not answer."""

import hashlib

from loader.cache.page_cache import Grant
from loader.cache.pages import page_name
from loader.errors import InvalidRuntime
from penstock.denied.record import TakedownRecord
from penstock.upkeep.takedown.peer_pages import peer_places, purge_peers
from tests.cache.peers.nodes import PAGE, Node, running_nodes
from tests.refusals import refusal

GONE = hashlib.sha256(b"gone").hexdigest()
OTHER = hashlib.sha256(b"other").hexdigest()
NBYTES = 6 * PAGE
FOOTER = hashlib.sha256(b"footer").hexdigest()
RECORD = TakedownRecord(
    n=1,
    places=(
        {"check": "absent", "path": "data/gone.tar", "sha256": GONE, "nbytes": NBYTES},
        {"check": "absent", "path": "data/gone.index.parquet", "footer_sha256": FOOTER},
    ),
)


def put_pages(node: Node, sha256: str) -> None:
    from loader.cache.node_cache import OpenCache

    cache = OpenCache(node.spec(None), lambda name, amount: None)
    for number in range(6):
        name = page_name(sha256, PAGE, number)
        grant = cache.read(name, (), claim=PAGE)
        assert isinstance(grant, Grant)
        cache.put(name, grant.nonce, bytes(PAGE))
    cache.close()


def put_index(node: Node) -> None:
    """Put the pages of the index beside those of the shard."""
    put_pages(node, f"{FOOTER} index")


def pages(node: Node) -> int:
    return sum(path.is_file() for path in (node.folder / "pages").rglob("*"))


def test_pages_of_the_shards_go_at_every_node(tmp_path):
    with running_nodes(tmp_path, 2) as nodes:
        peers = ",".join(node.address for node in nodes)
        for node in nodes:
            put_pages(node, GONE)
            put_pages(node, OTHER)
            put_index(node)
        before = list(peer_places(RECORD, [peers]))
        assert [place["clean"] for place in before] == [False, False]
        assert "12 pages are there" in before[0]["why"]
        assert purge_peers(peers, RECORD) == 24
        assert [pages(node) for node in nodes] == [6, 6]
        assert all(place["clean"] for place in peer_places(RECORD, [peers]))


def test_node_that_is_down_is_named_after_the_others_were_purged(tmp_path):
    with running_nodes(tmp_path, 2) as nodes:
        peers = ",".join(node.address for node in nodes)
        for node in nodes:
            put_pages(node, GONE)
        nodes[0].stop()
        with refusal(InvalidRuntime, what="nodes") as caught:
            purge_peers(peers, RECORD)
        (failure,) = caught.value.given
        assert failure.startswith(f"{nodes[0].address} (")
        assert pages(nodes[1]) == 0
        clean = {place["path"]: place["clean"] for place in peer_places(RECORD, [peers])}
        assert clean == {nodes[0].address: False, nodes[1].address: True}
