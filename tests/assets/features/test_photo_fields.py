"""Photos of several formats, as they came, in one field: featurized, published and decoded like others."""

from collections.abc import Callable
from pathlib import Path

import dagster as dg
from PIL import Image

import loader
from assets.media.policy import CutPolicy, ImagePolicy
from assets.spec import DatasetSpec, Feature
from loader.storage import open_store


def test_photos_of_three_formats(
    run: Callable[..., dg.ExecuteInProcessResult],
    root: loader.Root,
    tmp_path: Path,
    arrive: Callable[[Path], str],
    half_red_blue: Callable[[int, int], Image.Image],
    failure_text: Callable[[dg.ExecuteInProcessResult], str],
) -> None:
    place = tmp_path / "mixed"
    place.mkdir()
    half_red_blue(80, 60).save(place / "a.jpg")
    half_red_blue(60, 80).save(place / "b.png")
    half_red_blue(64, 64).save(place / "c.webp", lossless=True)
    spec = DatasetSpec(
        name="demo",
        policy=CutPolicy(image=ImagePolicy(mode="reference")),
        features=(Feature(name="picture"), Feature(name="phash")),
    )
    ingest = run("ingest", spec, arrive(place), place)
    assert ingest.success, failure_text(ingest)
    release = run("release", spec, place=place)
    assert release.success, failure_text(release)
    version = root.open("demo@1")
    assert {"img", "photo.json", "phash.npy"} == set(version.fields)
    samples = version.samples().select("raw_key", "width_px", "phash", "luma_mean_ratio").collect()
    assert dict(samples.select("raw_key", "width_px").iter_rows()) == {"a.jpg": 80, "b.png": 60, "c.webp": 64}
    assert samples.null_count().row(0) == (0, 0, 0, 0)
    stored = open_store(str(place))
    plan = loader.plan({"p": version.select("img", "photo.json")}, seed=1, global_batch=3)
    with loader.Loader(plan, decode={"img": lambda data, rng: bytes(data)}) as batches:
        batch = next(batches)
    for facts, data in zip(batch["photo.json"], batch["img"], strict=True):
        if facts["raw"] != "a.jpg":  # whose JFIF is written anew
            assert data == stored.get(facts["raw"]).data
    with loader.Loader(plan, framework="numpy") as batches:
        assert {pixels.shape for pixels in next(batches)["img"]} == {(60, 80, 3), (80, 60, 3), (64, 64, 3)}
