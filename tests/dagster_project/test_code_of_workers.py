"""Workers import what the code location imports, under `dg launch`; code that they cannot import is not a verdict."""

import os
import subprocess
from pathlib import Path

import dagster as dg
import numpy as np
import pytest
from PIL import Image

import loader
from assets.arrivals.make_batches import discover
from loader.storage import open_store
from penstock.stages import StageRecord, current_record
from tests.dagster_project.test_cli_tools import BIN, REPOSITORY, environment

SPEC = """
from assets.spec import DatasetSpec, Feature

SPEC = DatasetSpec(
    name="birds", features=(Feature(name="_colour:MeanColour"),), max_reject_rate=1.0
)
"""
FEATURIZER = """
from dataclasses import dataclass
from typing import ClassVar

from assets.featurizers import Features, Featurizer
from assets.featurizers.decoding import kind_field, photo


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanColour(Featurizer):
    name: ClassVar[str] = "mean_colour"
    output_columns: ClassVar[tuple[str, ...]] = ("mean_ratio",)
    image: str | None = "jpg"

    def __call__(self, kind, sample):
        from {module} import mean

        return Features(fields={{}}, columns={{"mean_ratio": mean(photo(sample, kind_field(self.inputs, kind)))}})
"""
HELPER = """
def mean(pixels):
    return float(pixels.mean() / 255)
"""
N_PHOTOS = 3


class Lab:
    """A folder with a dataset, its helpers, a landing folder and Dagster's own folder."""

    def __init__(self, folder: Path) -> None:
        self.home = folder
        self.datasets = folder / "datasets"
        self.landing = folder / "landing"
        self.datasets.mkdir()
        self.landing.mkdir()
        (self.datasets / "lab_birds.py").write_text(SPEC)
        (self.datasets / "_palette.py").write_text(HELPER)
        for number in range(N_PHOTOS):
            pixels = np.full((40 + number, 32, 3), 40 * number, np.uint8)
            Image.fromarray(pixels).save(self.landing / f"{number}.jpg")
        self.environment = environment(folder) | {"PENSTOCK_DATASETS": str(self.datasets)}
        self.root = loader.Root(folder / "root")
        self.root.create()
        (self.batch,) = discover(self.root.store, open_store(str(self.landing)), "birds")
        with dg.DagsterInstance.from_config(str(folder)) as instance:
            instance.add_dynamic_partitions("birds_raw_batch", [self.batch])

    def featurizer_imports(self, module: str) -> None:
        """Let the featurizer import this module when it sees a sample."""
        (self.datasets / "_colour.py").write_text(FEATURIZER.format(module=module))

    def ingest(self) -> "subprocess.CompletedProcess[str]":
        """Run `dg launch` over the batch, in this checkout."""
        command = [str(BIN / "dg"), "launch", "--job", "birds_ingest", "--partition", self.batch]
        return subprocess.run(
            command,
            cwd=REPOSITORY,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    def record(self, stage: str) -> StageRecord | None:
        """Return the newest record of a stage."""
        return current_record(self.root.store, "birds", stage, self.batch)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    assert "PYTHONPATH" not in environment(tmp_path), "the code location's path comes from nowhere else"
    assert os.path.isdir(REPOSITORY / "assets")
    return Lab(tmp_path)


def test_dg_launch_stops_at_a_featurizer_that_lacks_a_library(lab: Lab) -> None:
    lab.featurizer_imports("no_such_library")
    stopped = lab.ingest()
    assert stopped.returncode != 0
    assert "featurizer 'mean_colour' failed at sample 'image/" in stopped.stdout
    assert "No module named 'no_such_library'" in stopped.stdout
    assert lab.record("feature_mean_colour") is None
    assert lab.record("samples") is None
    media = lab.record("media")
    assert media is not None
    assert (media.verdict, media.counts["admitted"]) == ("published", N_PHOTOS)


def test_dg_launch_computes_with_helpers_beside_the_dataset(lab: Lab) -> None:
    lab.featurizer_imports("_palette")
    done = lab.ingest()
    assert done.returncode == 0, done.stdout
    features = lab.record("feature_mean_colour")
    assert features is not None
    assert (features.verdict, features.counts["samples"], features.counts["refused"]) == (
        "published",
        N_PHOTOS,
        0,
    )
    samples = lab.record("samples")
    assert samples is not None
    assert samples.counts["image"] == N_PHOTOS
