"""Datasets of others as sources, their versions pinned in items.txt: the same batches everywhere."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.oracles.items_walk import BATCH, STEPS, same_batches, samples

pytestmark = pytest.mark.oracle

ROOT = Path(__file__).parents[2]
BLOCKS = dict(re.findall(r"```python (\w+)\n(.*?)```", (ROOT / "docs/cookbook.md").read_text(), re.S))
MODULES = Path(__file__).parent / "items_modules"
WITH_DRAWS = (
    "image_folder",
    "detection",
    "hf_transform",
    "hf_folder",
    "albumentations_seeded",
    "albumentations_transform",
)
WITHOUT_DRAWS = ("fake_data", "hf_plain", "hf_parquet", "grain_record", "grain_map")


@pytest.fixture
def case(tmp_path, peer):
    """case(name) -> what the case of items_peer.py prints."""

    def run(name):
        (result,) = peer("items", name, tmp_path)
        return result

    return run


@pytest.mark.parametrize("name", WITHOUT_DRAWS)
def test_dataset_makes_the_same_batches_everywhere(case, name):
    batches = same_batches(case(name)["settings"])
    assert len({digest for digest, _ in batches.values()}) == STEPS


@pytest.mark.parametrize("name", WITH_DRAWS)
def test_augmented_dataset_makes_the_same_batches_everywhere(case, name):
    """Two epochs of a sample differ: the augmentation draws anew."""
    result = case(name)
    batches = same_batches(result["settings"])
    assert len(set(samples(batches))) == BATCH * STEPS > result["length"]


def test_fingerprint_of_hugging_face_is_the_plans(case):
    assert case("hf_plain")["fingerprint"].startswith("hf-")


def test_rows_of_hugging_face_come_by_one_call_for_a_batch(case):
    assert case("hf_calls") == {"rows": [10, 1, 1, 10]}


def test_albumentations_draws_are_reported_at_the_first_item(case):
    error = case("albumentations_itself")["error"]
    assert "differs each time that it is made, in the field 'image'" in error
    assert "seeded=function(dataset, rng)" in error


@pytest.fixture
def typed_in(tmp_path, interpreters):
    """typed_in(name) -> what a block of the cookbook prints as a script of its own; twice, with equal lines."""
    modules = f"{MODULES}{os.pathsep}{ROOT}"
    environment = {**os.environ, "PYTHONPATH": modules, "HF_HOME": str(tmp_path / "hf")}

    def run(name):
        (tmp_path / f"{name}_block.py").write_text(BLOCKS[name])
        lines = []
        for _ in range(2):
            done = subprocess.run(
                [interpreters("items"), "-W", "error", f"{name}_block.py"],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, done.stderr[-3000:]
            lines.append(done.stdout)
        assert lines[0] == lines[1]
        return lines[0]

    return run


def test_cookbook_trains_on_a_dataset_of_hugging_face(typed_in):
    assert typed_in("hf") == "(16, 3, 32, 32) 9 photo-052 True\n"


def test_cookbook_repeats_transforms_of_torchvision(typed_in, tmp_path):
    (tmp_path / "seeded.py").write_text(BLOCKS["seeded"])
    typed_in("splits")
    assert typed_in("torchvision") == "True (16, 3, 6, 6)\n"
