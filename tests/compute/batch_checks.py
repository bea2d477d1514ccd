"""A batch of the demo's dataset on a cluster, for the tests of each engine."""

import sys
import threading
from dataclasses import replace
from pathlib import Path

from PIL import Image

import loader
from assets.arrivals.make_batches import discover
from assets.features.feature_asset import features_of_batch
from assets.featurizers import make
from assets.ingest.media import media_stage
from assets.ingest.raw_objects import land
from assets.ingest.units import units_stage
from dagster_project.datasets.demo import SPEC as DEMO
from loader.storage import open_store
from penstock.compute.cluster_compute import ClusterCompute
from penstock.compute.pool import InlineCompute
from tests.servers.patience import until
from tests.servers.processes import end

SPEC = replace(DEMO, max_reject_rate=1.0)
NETWORKS = Path(__file__).parents[1] / "assets" / "featurizers" / "networks"
"""Folder that nodes import a small model from; features of the demo are in `make prove-clusters`."""


def assert_same_batch(cluster, folder, runners):
    """Photos, a cut one among them, and a model's features have the bytes on a cluster that they have here, though a
    runner is killed.

    runners: the processes of runners that work.
    """
    place, told = folder / "landing", []
    place.mkdir()
    for number in range(6):
        Image.new("RGB", (300 + 40 * number, 280), (40 * number, 90, 200)).save(place / f"{number}.jpg")
    (place / "cut.jpg").write_bytes((place / "5.jpg").read_bytes()[:900])

    def kill():
        alive = []
        until(lambda: alive.extend(runners()) or alive)
        end(alive[0])
        told.append("killed")

    with loader.Root(folder / "here") as here, loader.Root(folder / "there") as there:
        here.create()
        there.create()
        alone = _hashes(here, place, InlineCompute())
        killer = threading.Thread(target=kill)
        killer.start()
        assert _hashes(there, place, ClusterCompute(cluster, InlineCompute(), told.append)) == alone
        killer.join()
    assert "killed" in told
    assert any("feature_embedding" in line and "1 of 1 units" in line for line in told)
    assert not any("computed here" in line for line in told)


def _hashes(root, place, compute):
    """SHA-256 of all that a batch leaves behind: tables, samples, shards."""
    store = open_store(str(place))
    (batch,) = discover(root.store, store, "demo")
    told = {"partition": batch, "run_id": "run"}
    try:
        land(root.store, store, dataset="demo", compute=compute, **told)
        media_stage(root, store, compute, SPEC, **told)
        record = units_stage(root, store, compute, SPEC, **told)[0]
        features = features_of_batch(root, compute, SPEC, _model(place.parent), **told)[0]
    finally:
        compute.close()
    parts = [loader.Part.from_json(entry["part"]) for entry in record.body["parts"]]
    shards = [shard.sha256 for part in parts for shard in part.shards]
    return [
        *(file.sha256 for file in record.files.values()),
        *(part.samples.sha256 for part in parts),
        *shards,
        *(file.sha256 for file in features.files.values()),
        *(shard["sha256"] for shard in features.body["shards"]),
    ]


def _model(folder):
    if str(NETWORKS) not in sys.path:
        sys.path.append(str(NETWORKS))
    from tests_networks import two_towers

    weights = folder / "small.safetensors"
    if not weights.exists():
        two_towers.save_small(weights, seed=3)
    return make("embedding", weights=str(weights), network="tests_networks.two_towers:load")
