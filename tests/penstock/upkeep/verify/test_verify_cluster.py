"""`penstock verify --full --cluster`: the machines of a cluster find what one process finds."""

import pytest

import loader
from loader.errors import InvalidCluster
from penstock.compute.cluster import Cluster
from penstock.compute.job import JobFolder, job_ids
from penstock.upkeep.verify.root import verify_root
from penstock.upkeep.verify.version import verify

CLUSTERS = {"inline": Cluster(engine="inline"), "local": Cluster(engine="local")}


@pytest.fixture
def root(tmp_path):
    """Two commits of d, four parts; a group on all of them."""
    root = loader.Root(tmp_path / "root")
    for first in (0, 20):
        with root.write("d", part_samples=6) as writer:
            for i in range(first, first + 12):
                writer.add(f"k{i:02d}", {"cls": i % 10, "x": b"%02d" % i * 50})
    root.add_group("d", "g", {"t.txt": lambda sample: f"{sample['cls']}"})
    return root


def damage(root, table):
    """A flipped byte in a shard, another that is gone, and with `table` a damaged samples file."""
    paths = sorted(row["path"] for row in root.open("d").parts.shard_rows().to_pylist())
    data = bytearray(root.store.get(paths[0]).data)
    data[600] ^= 1
    root.store.put(paths[0], bytes(data))
    root.store.delete_many([paths[3]])
    if table:
        path = root.open("d").manifest["samples"][0]["path"]
        root.store.put(path, bytes(root.store.get(path).data)[:-9])


@pytest.mark.parametrize("engine", CLUSTERS)
@pytest.mark.parametrize("table", [False, True])
def test_cluster_finds_what_one_process_finds(root, engine, table):
    assert verify(root, "d", full=True, cluster=CLUSTERS["inline"]).problems == []
    damage(root, table)
    here = verify(loader.Root(root.url), "d", full=True)
    there = verify(loader.Root(root.url), "d", full=True, cluster=CLUSTERS[engine])
    assert len(here.problems) >= 2 + table
    assert there == here


def test_every_verification_reads_again_and_an_interrupted_one_continues(root):
    for n in (1, 2):
        verify(root, "d@3", full=True, cluster=CLUSTERS["inline"])
        assert len(list(job_ids(root.store))) == n
    last = [JobFolder(root.store, one) for one in job_ids(root.store)]
    newest = max(last, key=lambda one: one.description().at_us)
    root.store.delete_many([newest.key("done/0.jsonl.zst")])
    verify(root, "d@3", full=True, cluster=CLUSTERS["inline"])
    assert len(list(job_ids(root.store))) == 2
    assert len(newest.done()) == 1
    assert verify_root(loader.Root(root.url), full=True).foreign == []


def test_verb_takes_a_cluster(root, tmp_path, cli):
    file = tmp_path / "here.toml"
    file.write_text('engine = "inline"\n')
    assert cli("verify", "d", "--full", "--cluster", file, root=root.url).out.endswith(": nothing wrong\n")
    assert "add --full" in cli("verify", "d", "--cluster", file, root=root.url).err
    assert cli("verify", "--full", "--cluster", file, root=root.url).code == 0
    file.write_text('engine = "inline"\nqueue = "long"\n')
    wrong = cli("verify", "d", "--full", "--cluster", file, root=root.url)
    assert (wrong.code, InvalidCluster.__name__ in wrong.err, "queue" in wrong.err) == (2, True, True)
