"""The examples of docs/extending.md work as they stand."""

import dataclasses
import importlib
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loader.errors import DecodeFailed, InvalidField

TEXT = (Path(__file__).parent.parent / "docs" / "extending.md").read_text()


def example(name: str) -> dict[str, Any]:
    """What the example's module defines."""
    (code,) = re.findall(rf"```python {name}\n(.*?)```", TEXT, re.S)
    names: dict[str, Any] = {"__name__": f"example_{name}"}
    exec(compile(code, f"docs/extending.md: {name}", "exec"), names)
    return names


def test_the_dataset_is_a_whole_set_of_assets() -> None:
    from dagster_project.definitions import build_defs

    spec = example("dataset")["SPEC"]
    keys = {key.to_user_string() for key in build_defs(datasets=[spec]).resolve_all_asset_keys()}
    assert keys == {
        f"portraits/{stage}"
        for stage in (
            "raw_objects",
            "media",
            "units",
            "feature_picture",
            "feature_phash",
            "samples",
            "version",
            "refresh",
            "quarantine",
            "reconciliation",
            "training_run",
        )
    }


def test_the_dataset_s_own_check_runs() -> None:
    import polars as pl

    check = example("dataset")["known_licences"]
    table = pl.DataFrame({"licence": ["CC0", "CC-BY-4.0"]})
    assert check(table, None).passed
    assert not check(pl.DataFrame({"licence": ["CC0", "unknown"]}), None).passed


def test_the_modality_reads_what_it_writes() -> None:
    module = example("modality")
    points = np.arange(12, dtype=np.float32).reshape(4, 3)
    assert np.array_equal(module["decode"](module["encode"]("a.xyz", points)), points)
    with pytest.raises(DecodeFailed, match="13 bytes are not whole points"):
        module["decode"](b"x" * 13)
    with pytest.raises(InvalidField, match="got shape"):
        module["encode"]("a.xyz", np.zeros(3))


def test_the_model_is_one_file_and_one_feature(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The conformance suite of featurizers runs over it as well."""
    from PIL import Image

    from assets.featurizers.models import ModelFeaturizer
    from assets.spec import DatasetSpec, Feature

    (code,) = re.findall(r"```python model\n(.*?)```", TEXT, re.S)
    (tmp_path / "shown_liking.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    weights = tmp_path / "liking.safetensors"
    importlib.import_module("shown_liking").save(weights, seed=1)
    feature = Feature(name="shown_liking:Liking", parameters={"weights": str(weights), "device": "cpu"})
    (kept,) = DatasetSpec(name="portraits", features=(feature,)).features
    assert kept.stage == "feature_liking"
    liking = kept.made()
    assert isinstance(liking, ModelFeaturizer)
    photos = []
    for seed in range(3):
        sink = io.BytesIO()
        pixels = np.random.default_rng(seed).integers(0, 255, (40, 50, 3), np.uint8)
        Image.fromarray(pixels).save(sink, "JPEG")
        photos.append({"jpg": sink.getvalue()})
    alone = [liking("image", photo).columns["liking_ratio"] for photo in photos]
    assert len(set(alone)) == 3
    for batch_size in (1, 2):
        sized = dataclasses.replace(liking, batch_size=batch_size)
        together = sized.features("image", photos)
        backwards = sized.features("image", photos[::-1])[::-1]
        assert together == backwards
        if batch_size == 1:
            assert [made.columns["liking_ratio"] for made in together] == alone  # type: ignore[union-attr]
