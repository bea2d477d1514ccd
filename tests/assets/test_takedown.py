"""A raw object is taken down: nothing that the pipeline wrote of it is left, and the next batch is published."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import loader
from assets.arrivals.batch_manifests import manifests
from assets.arrivals.make_batches import discover
from assets.pipeline.stages import require_published
from assets.pipeline.tables import read_table
from assets.spec import DatasetSpec, Feature
from loader.dataset.log.denies import Target
from loader.storage import open_store
from penstock.card.build import build_card, save_card
from penstock.stages import partitions
from penstock.upkeep.takedown.prove import prove
from penstock.upkeep.takedown.takedown_run import run_takedown

SPEC = DatasetSpec(name="demo", features=(Feature(name="picture"),))
NAME = "photos/cats/a cat.jpg"
Run = Callable[..., Any]


def _cells(root: loader.Root, place: str) -> str:
    """Every text under a folder of the root, tables as their cells."""
    out = []
    for info in root.store.list(place):
        data = root.store.get(info.key).data
        if info.key.endswith(".parquet"):
            out.append(str(pq.read_table(io.BytesIO(data)).to_pydict()))
        else:
            out.append(data.decode(errors="replace"))
    return "\n".join(out)


def test_takedown_deletes_a_raw_object(
    run: Run, arrive: Callable[[Path], str], root: loader.Root, landing: Path, tmp_path: Path
) -> None:
    batch = arrive(landing)
    assert run("ingest", SPEC, batch).success
    assert run("release", SPEC).success
    version = root.open("demo@1")
    save_card(root.store, build_card(root, version))
    frame = version.samples().collect()
    (key,) = frame.filter(frame["raw_key"] == NAME)["key"].to_list()
    assert NAME in _cells(root, "tables/")
    assert key in _cells(root, "stages/") + _cells(root, "cards/") + _cells(root, "tables/")
    n = root.log.deny([Target(kind="raw", value=NAME)], "ticket 4", "privacy desk").n

    ran = run_takedown(root, n, apply=True)
    assert (ran.samples, ran.new, ran.retired) == ({"demo": 1}, ["demo@2"], ["demo@1"])
    assert len(root.open("demo@2")) == len(version) - 1
    for place in ("tables/", "stages/", "cards/", "plans/"):
        cells = _cells(root, place)
        assert NAME not in cells
        assert key not in cells
    assert not list(root.store.list("cards/"))
    # What is left of the batch can be read as before: its manifest by its name, every stage by its record.
    (manifest,) = manifests(root.store, "demo")
    assert manifest.batch == batch
    for stage in ("raw_objects", "media", "units", "feature_picture", "samples"):
        assert partitions(root.store, "demo", stage) == [batch]
        record = require_published(root.store, "demo", stage, batch)
        for file in record.files.values():
            assert all(NAME not in str(row) for row in read_table(root.store, file))
    units = require_published(root.store, "demo", "units", batch)
    assert len(read_table(root.store, units.files["units"])) == len(version) - 1
    # The object is still at its source: the discovery leaves it, whatever else has come.
    (landing / "photos" / "cats" / "new.jpg").write_bytes((landing / NAME).read_bytes() + b"\0")
    (again,) = discover(root.store, open_store(str(landing)), "demo", denies=root.state.denies)
    (_, later) = manifests(root.store, "demo")
    assert [item.key for item in later.objects] == ["photos/cats/new.jpg"]
    save_card(root.store, build_card(root, root.open("demo@2")))
    assert key not in _cells(root, "cards/")
    proof = prove(root, n)
    assert proof["result"] == "incomplete"  # the raw object, and what a collector has not taken yet
    assert NAME not in json.dumps(proof)
    unclean = {place["check"] for place in proof["places"] if not place["clean"]}
    assert unclean == {"absent", "raw"}
    assert again != batch
