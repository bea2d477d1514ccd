"""Verbs with `--cluster` on a real Slurm of four nodes leave and find what one process does."""

import random

import pytest

import loader
from loader.dataset.log.denies import Target
from loader.storage import open_store
from penstock.compute.cluster import read_cluster
from penstock.compute.job import JobFolder, job_ids
from penstock.denied.find import find
from penstock.denied.keys_job import KeysTablesOnCluster
from penstock.denied.keys_tables import KeysTables
from penstock.upkeep.copying import copy_job
from penstock.upkeep.copying.items import Pace
from penstock.upkeep.migrate.run import migrate
from penstock.upkeep.verify.root import verify_root
from tests.compute.job_checks import REPOSITORY

pytestmark = pytest.mark.slurm


@pytest.fixture
def cluster(slurm_cluster, tmp_path):
    """The cluster, of four slots."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "environment").write_text(f"PYTHONPATH={REPOSITORY}\n")
    (tmp_path / "cluster.toml").write_text(
        f'engine = "slurm"\nlogs = "{tmp_path}/logs"\nenvironment = "{tmp_path}/environment"\n[slot]\nnumber = 4\n'
    )
    return read_cluster(tmp_path / "cluster.toml")


@pytest.fixture
def root(tmp_path):
    """Two versions of a dataset, with samples of two subjects."""
    root = loader.Root(tmp_path / "root")
    for first in (0, 20):
        with root.write("d", part_samples=4) as writer:
            for i in range(first, first + 20):
                source = {"subject": "ZQALICEZQ" if i % 5 == 0 else "bob", "raw_key": f"raw/{i}.jpg"}
                writer.add(f"k{i:02d}", {"bin": random.Random(i).randbytes(900)}, source=source)
    return root


def test_mirror_and_findings_are_those_of_one_process(cluster, root, tmp_path, monkeypatch):
    monkeypatch.setattr(copy_job, "ITEMS", 4)
    place = open_store(str(tmp_path / "mirror"))
    report = migrate(root, place, Pace(requests_per_s=400), cluster=cluster)
    assert report.failures == {}
    assert verify_root(loader.Root(place.url), full=True).problems == []
    for info in place.list("data/"):
        assert bytes(place.get(info.key).data) == bytes(root.store.get(info.key).data)
    (job,) = job_ids(place)
    assert JobFolder(place, job).description().n_units > 5
    root.log.deny((Target(kind="subject", value="ZQALICEZQ"),), "ticket 12", "privacy desk")
    (deny,) = root.state.denies
    there = find(KeysTablesOnCluster(root, deny, cluster), "d")
    assert there == find(KeysTables(root, deny), "d")
    assert sum(map(len, there.rows.values())) == 8
