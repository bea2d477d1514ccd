"""A model as a stage of a batch: what its record says, and what stops it before any sample is touched."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import pytest
from PIL import Image
from tests_networks import autoencoder, two_towers

import loader
from assets.arrivals.make_batches import discover
from assets.features import feature_asset as features
from assets.featurizers import Featurizer
from assets.featurizers import make as featurizer
from assets.ingest import media as validation
from assets.ingest import raw_objects as landing_stage
from assets.ingest import units
from assets.pipeline.stages import require_published
from assets.spec import DatasetSpec, Feature
from loader.dataset.writing.part_extension import read_part
from loader.errors import InvalidWeights, ModelFailed, ObjectNotFound
from loader.storage import open_store
from penstock.compute.pool import Compute, InlineCompute, LocalCompute
from penstock.stages import StageRecord, current_record
from tests.refusals import refusal

Models = Mapping[str, Mapping[str, Any]]
SPEC = DatasetSpec(name="demo")


@pytest.fixture(scope="module", autouse=True)
def _poison() -> Iterator[None]:
    """Its featurizers can be imported, here and in workers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[2] / "poison"))
        yield


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[loader.Root]:
    with loader.Root(tmp_path_factory.mktemp("model") / "root") as made:
        made.create()
        yield made


def save_photos(place: Path, widths: Sequence[int]) -> None:
    place.mkdir(exist_ok=True)
    for number, width in enumerate(widths):
        pixels = np.random.default_rng(number).integers(0, 255, (7, 9, 3), np.uint8)
        Image.fromarray(pixels).resize((width, 50)).save(place / f"{width}.jpg")


@pytest.fixture(scope="module")
def batch(root: loader.Root, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Three photos cut into units. Tests name their featurizers apart."""
    place = tmp_path_factory.mktemp("photos")
    save_photos(place, [64, 72, 80])
    store, engine = open_store(str(place)), InlineCompute()
    (partition,) = discover(root.store, store, "demo")
    landing_stage.land(root.store, store, dataset="demo", partition=partition, run_id="run")
    validation.media_stage(root, store, engine, SPEC, partition=partition, run_id="run")
    units.units_stage(root, store, engine, SPEC, partition=partition, run_id="run")
    return partition


def run_stage(
    root: loader.Root, compute: Compute, one: Featurizer, batch: str, **more: Any
) -> tuple[StageRecord, dict[str, Mapping[str, Any]]]:
    """The record, and its rows by key."""
    record, rows = features.feature_stage(
        root, compute, one, dataset="demo", partition=batch, run_id="run", timeout_s=3600, **more
    )
    return record, {row["key"]: row for row in rows}


def photos(root: loader.Root, batch: str) -> Mapping[str, Mapping[str, bytes]]:
    (entry,) = require_published(root.store, "demo", "units", batch).body["parts"]
    return dict(read_part(root.store, loader.Part.from_json(entry["part"]), ["jpg"]))


def embeddings(root: loader.Root, batch: str, record: StageRecord) -> Mapping[str, bytes]:
    """key -> what is stored."""
    (entry,) = require_published(root.store, "demo", "units", batch).body["parts"]
    body = {**entry["part"], "shards": [*entry["part"]["shards"], *record.body["shards"]]}
    found = read_part(root.store, loader.Part.from_json(body), ["embedding.npy"])
    return {key: sample["embedding.npy"] for key, sample in found}


def single_photo_outputs(models: Models, root: loader.Root, batch: str) -> Mapping[str, bytes]:
    """key -> what is to be stored: each photo by itself, in this process."""
    from loader.modalities import encode

    one = featurizer("embedding", **models["embedding"])
    return {
        key: bytes(encode("embedding.npy", one("image", sample).fields["embedding.npy"]))
        for key, sample in photos(root, batch).items()
    }


def test_record_names_weights_and_device(
    root: loader.Root, batch: str, models: Models, tmp_path: Path
) -> None:
    import torch

    from assets.featurizers.models.weights import weights_sha256

    path = tmp_path / "weights.safetensors"
    path.write_bytes(Path(models["embedding"]["weights"]).read_bytes())
    one = featurizer("embedding", **{**models["embedding"], "weights": str(path)})
    record, rows = run_stage(root, InlineCompute(), one, batch)
    assert {
        name: record.body[name]
        for name in ("weights", "weights_sha256", "batch_size", "device", "dtype", "torch")
    } == {
        "weights": str(path),
        "weights_sha256": weights_sha256(str(path)),
        "batch_size": 1,
        "device": "cpu",
        "dtype": "float32",
        "torch": torch.__version__,
    }
    assert record.body["processor"] == torch.backends.cpu.get_cpu_capability()
    assert not any(row["code"] for row in rows.values())
    assert embeddings(root, batch, record) == single_photo_outputs(models, root, batch)
    assert run_stage(root, InlineCompute(), one, batch)[0].r == record.r == 1
    stated = replace(one, sha256=record.body["weights_sha256"], weights="/nowhere/x.safetensors")  # type: ignore[type-var]
    assert run_stage(root, InlineCompute(), stated, batch)[0].r == 1  # all is there: no weights are needed
    two_towers.save_small(path, seed=99)
    again, _ = run_stage(root, InlineCompute(), one, batch)
    assert (again.r, again.body["weights_sha256"]) == (2, weights_sha256(str(path)))
    assert embeddings(root, batch, again) != embeddings(root, batch, record)


def test_crash_that_splits_a_stretch_changes_no_bit(root: loader.Root, batch: str, models: Models) -> None:
    one = featurizer("tests_poison:CrowdedEmbedding", **models["embedding"])
    compute = LocalCompute(workers=1)
    try:
        record, rows = run_stage(root, compute, one, batch)
    finally:
        compute.close()
    assert not any(row["code"] for row in rows.values())
    assert embeddings(root, batch, record) == single_photo_outputs(models, root, batch)


def nothing_was_made(root: loader.Root, batch: str, one: Featurizer, before: Sequence[str]) -> bool:
    there = [info.key for info in root.store.list("data/")]
    return current_record(root.store, "demo", f"feature_{one.name}", batch) is None and there == before


@pytest.mark.parametrize("what", ["missing", "gone", "other", "unfitting", "device"])
def test_what_cannot_run_is_said_before_any_sample_is_touched(
    root: loader.Root, batch: str, models: Models, tmp_path: Path, what: str
) -> None:
    path = tmp_path / "weights.safetensors"
    autoencoder.save_small(path, seed=1)
    told: Mapping[str, tuple[Mapping[str, Any], type[Exception], str]] = {
        "missing": ({"weights": str(tmp_path / "gone.safetensors")}, InvalidWeights, "no weights at .*/gone"),
        "gone": (
            {"weights": str(tmp_path / "gone.safetensors"), "sha256": "0" * 64},
            ModelFailed,
            "no weights at .*/gone",
        ),
        "other": ({"sha256": "0" * 64}, ModelFailed, "cannot be loaded: .*holds other weights"),
        "unfitting": (
            {"weights": str(path)},
            ModelFailed,
            "cannot be loaded: .*holds the network 'autoencoder'",
        ),
        "device": ({"device": "cuda:77"}, ModelFailed, "cannot be loaded: .*no device cuda:77 here"),
    }
    parameters, error, message = told[what]
    one = featurizer("embedding", **{**models["embedding"], "name": what, **parameters})
    before = [info.key for info in root.store.list("data/")]
    with pytest.raises(error, match=message):
        run_stage(root, InlineCompute(), one, batch)
    assert nothing_was_made(root, batch, one, before)


def test_model_that_fails_on_everything_publishes_nothing(
    root: loader.Root, batch: str, models: Models
) -> None:
    one = featurizer("tests_poison:BrokenEmbedding", **models["embedding"])
    before = [info.key for info in root.store.list("data/")]
    with refusal(ModelFailed, what="broken_embedding", given="ArithmeticError: no such kernel"):
        run_stage(root, InlineCompute(), one, batch)
    assert nothing_was_made(root, batch, one, before)


def test_store_that_does_not_answer_refuses_no_sample(root: loader.Root, tmp_path: Path, batch: str) -> None:
    """Of any featurizer: what cannot be read now is not what is wrong with a sample."""
    shutil.copytree(Path(root.url), tmp_path / "copy")
    with loader.Root(tmp_path / "copy") as copy:
        (entry,) = require_published(copy.store, "demo", "units", batch).body["parts"]
        paths = [shard["path"] for shard in entry["part"]["shards"]]
        copy.store.delete_many(paths)
        one = featurizer("phash")
        with pytest.raises(ObjectNotFound):
            run_stage(copy, InlineCompute(), one, batch)
        assert current_record(copy.store, "demo", "feature_phash", batch) is None


def test_from_the_landing_place_through_dagster(
    run: Callable[..., dg.ExecuteInProcessResult],
    failure_text: Callable[[dg.ExecuteInProcessResult], str],
    publish_alone: Callable[..., loader.Version],
    tmp_path: Path,
) -> None:
    landing, weights = tmp_path / "few", tmp_path / "late.safetensors"
    save_photos(landing, [70, 80])
    parameters = {"weights": str(weights), "network": "tests_networks.two_towers:load", "device": "cpu"}
    spec = DatasetSpec(name="demo", features=(Feature(name="embedding", parameters=parameters),))
    with loader.Root(tmp_path / "root") as root:
        root.create()
        (arrived,) = discover(root.store, open_store(str(landing)), "demo")
        result = run("ingest", spec, arrived, landing)
        assert failure_text(result) == f"no weights at {weights}: there is no such file"
        two_towers.save_small(weights, seed=3)
        assert run("ingest", spec, arrived, landing).success
        samples = require_published(root.store, "demo", "samples", arrived)
        made = publish_alone(root, samples)
        assert len(made.select("embedding.npy", where_present=True)) == 2
