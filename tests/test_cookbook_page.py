"""The blocks of docs/cookbook.md, in their order, twice over, in processes of their own."""

import json
import re
from pathlib import Path

import pytest

from tests.servers.processes import python

ROOT = Path(__file__).parent.parent
BLOCKS = dict(re.findall(r"```python (\w+)\n(.*?)```", (ROOT / "docs" / "cookbook.md").read_text(), re.S))
AUGMENT = """
import loader, sys

def augment(image):  # in the place of torchvision's: it draws from torch's global generator as they do
    image = image.float() * (1 + torch.rand(3, 1, 1))
    return image.flip(-1) if torch.rand(()) < 0.5 else image

if __name__ == "__main__":
    faces = loader.Root("cookbook-root").open("faces@1")
    plan = loader.plan({"faces": faces}, seed=7, global_batch=16)
    for workers in (0, 4):
        with loader.Loader(plan, 0, 1, transform=Seeded("x.npy", augment), steps=6, workers=workers) as batches:
            print([float(batch["x.npy"].double().sum()) for batch in batches])
"""


def run(code: str, place: Path) -> str:
    done = python("-W", "error", "-c", code, cwd=place)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("cookbook")
    run(BLOCKS["splits"], place)
    return place


def test_splits_hold_people_together_and_run_twice(place: Path) -> None:
    said = run(BLOCKS["splits"], place)
    n_all, n_val = map(int, re.findall(r"\d+", said.splitlines()[0]))
    assert n_all == 200
    assert 0 < n_val < 60
    assert n_val % 4 == 0  # a person is on one side
    assert "split" in said


def test_seeded_transform_gives_the_same_batches_for_any_number_of_threads(place: Path) -> None:
    one, four = run(BLOCKS["seeded"] + AUGMENT, place).splitlines()
    assert one == four
    assert len(set(json.loads(one))) == 6


def test_validation_reads_each_sample_once_and_runs_twice(place: Path) -> None:
    assert [run(BLOCKS["validate"], place) for _ in range(2)] == ["True\n"] * 2


def test_random_crops_repeat_with_tokens_of_their_captions_and_run_twice(place: Path) -> None:
    assert [run(BLOCKS["captions"], place) for _ in range(2)] == ["(8, 32, 32, 3) (8, 16) 8 True\n"] * 2


def test_video_runs_twice(place: Path) -> None:
    assert [run(BLOCKS["video"], place) for _ in range(2)] == ["(4, 8, 32, 32, 3)\n"] * 2


def test_documents_are_packed_and_run_twice(place: Path) -> None:
    first, second = (run(BLOCKS["language"], place) for _ in range(2))
    assert first == second
    assert first.startswith("(8, 512) ")


def test_every_block_is_tried() -> None:
    tried = {"splits", "validate", "captions", "seeded", "video", "language"}
    assert set(BLOCKS) == {*tried, "torchvision"}
    assert "from seeded import Seeded\n" in BLOCKS["torchvision"]  # each block is a script of its own


def test_block_of_torchvision_compiles() -> None:
    """torchvision is no dependency of the project, so it is not run here."""
    compile(BLOCKS["torchvision"], "torchvision", "exec")
