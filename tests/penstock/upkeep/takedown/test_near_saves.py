"""A proof names near saves of models that were trained on the samples, in folders and at servers."""

import json

from loader.cache.peers.near_files import marker_key, near_folder
from penstock.denied.record import TakedownRecord
from penstock.upkeep.takedown.near_saves import near_places
from tests.cache.peers.nodes import running_nodes

RECORD = TakedownRecord(n=1, places=({"check": "retired", "id": "v-denied"},))


def put_marker(node, run, id):
    path = node.folder / near_folder(node.spec(None)).rpartition("/")[2] / marker_key(run, 20)
    path.parent.mkdir(parents=True)
    path.write_bytes(json.dumps({"versions": [{"id": id}]}).encode())


def test_near_saves_of_the_versions_are_places(tmp_path):
    assert RECORD.versions() == {"v-denied"}
    with running_nodes(tmp_path, 2) as nodes:
        put_marker(nodes[0], "a", "v-denied")
        put_marker(nodes[1], "b", "v-other")
        peers = ",".join(node.address for node in nodes)
        folders = [str(node.folder) for node in nodes]
        (place,) = near_places(RECORD, folders, [])
        assert place["path"] == f"{near_folder(nodes[0].spec(None))}/{marker_key('a', 20)}"
        (place,) = near_places(RECORD, [], [peers])
        assert place["path"] == f"{nodes[0].address}/{marker_key('a', 20)}"
        assert not place["clean"]
        nodes[0].stop()
        (place,) = near_places(RECORD, [], [peers])
        assert place["path"] == nodes[0].address
        assert not place["clean"]
        nothing = TakedownRecord(n=1, places=())
        assert list(near_places(nothing, folders, [peers])) == []
