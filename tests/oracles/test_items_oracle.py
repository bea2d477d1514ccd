"""Datasets of others as sources, their versions pinned in items.txt: the same batches everywhere."""

import os
import re
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torch.distributed import TCPStore

from tests.oracles.items_walk import BATCH, STEPS, same_batches, samples
from tests.servers.patience import until

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


def test_mixup_in_collate_draws_the_same_in_a_process(case):
    here, in_process = case("mixup")["settings"]
    assert here == in_process
    assert len(set(here)) == 3


def test_fingerprint_of_hugging_face_is_the_plans(case):
    assert case("hf_plain")["fingerprint"].startswith("hf-")


def test_rows_of_hugging_face_come_by_one_call_for_a_batch(case):
    assert case("hf_calls") == {"rows": [10, 1, 1, 10]}


def test_albumentations_draws_are_reported_at_the_first_item(case):
    error = case("albumentations_itself")["error"]
    assert "differs each time that it is made, in the field 'image'" in error
    assert "seeded=function(dataset, rng)" in error


@pytest.fixture
def cookbook_output(tmp_path, interpreters):
    """cookbook_output(name) -> what a block of the cookbook prints as a script of its own; twice, with equal lines."""
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


def test_cookbook_trains_on_a_dataset_of_hugging_face(cookbook_output):
    assert cookbook_output("hf") == "(16, 3, 32, 32) 9 photo-052 True\n"


def test_cookbook_repeats_transforms_of_torchvision(cookbook_output, tmp_path):
    (tmp_path / "seeded.py").write_text(BLOCKS["seeded"])
    cookbook_output("splits")
    assert cookbook_output("torchvision") == "True (16, 3, 6, 6)\n"


CLASSIFY = Path(__file__).parent / "classify"
EPOCHS, STEPS_OF_EPOCH = 4, 5
N_TRAIN, N_VAL = 60, 25


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder with train/<class> and val/<class>, as ImageFolder reads it."""
    folder = tmp_path_factory.mktemp("photos")
    for split, n in (("train", N_TRAIN), ("val", N_VAL)):
        for number in range(n):
            place = folder / split / f"class-{number % 3}"
            place.mkdir(parents=True, exist_ok=True)
            shape = (40 + number % 5, 48, 3)
            pixels = np.random.default_rng(number).integers(0, 255, shape, np.uint8)
            Image.fromarray(pixels).save(place / f"{number:03d}.jpg")
    return folder


@pytest.fixture
def start_ranks(photos, tmp_path, interpreters):
    """start_ranks(script, ranks, name, ...) -> the ranks' processes, and the file of what each prints."""
    modules = f"{MODULES}{os.pathsep}{ROOT}"
    environment = {**os.environ, "PYTHONPATH": modules, "OMP_NUM_THREADS": "1"}
    processes = []
    stores = []

    def start(script, n_ranks, name, *options):
        # The environment that torchrun gives its ranks, which outlive it.
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        stores.append(store)
        world = {"WORLD_SIZE": str(n_ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
        world["TORCHELASTIC_USE_AGENT_STORE"] = "True"
        places = ("--data", photos, "--output", tmp_path / "run", "--epochs", str(EPOCHS))
        ranks = []
        printed = []
        for rank in range(n_ranks):
            path = tmp_path / f"{name}-{rank}.txt"
            with path.open("wb") as file:
                process = subprocess.Popen(
                    [interpreters("items"), CLASSIFY / script, *places, *options],
                    env={**environment, **world, "RANK": str(rank)},
                    stdout=file,
                    stderr=subprocess.STDOUT,
                )
            processes.append(process)
            ranks.append(process)
            printed.append(path)
        return ranks, printed

    yield start
    for process in processes:
        process.kill()
        process.wait()


def finish_ranks(ranks, printed):
    """Wait for the end of all ranks; return what each printed."""
    texts = []
    for process, path in zip(ranks, printed, strict=True):
        code = process.wait()
        texts.append(path.read_text())
        assert code == 0, texts[-1][-3000:]
    return texts


def step_digests(texts):
    """Return step -> [digest over all ranks, checksums of all images in order]; texts: what each rank printed."""
    steps = {}
    for text in texts:
        digests = dict(re.findall(r"^took (\d+) (\d+)$", text, re.M))
        images = dict(re.findall(r"^images (\d+) \[(.*)\]$", text, re.M))
        for step, digest in digests.items():
            entry = steps.setdefault(int(step), [0, []])
            entry[0] = (entry[0] + int(digest)) % 2**64
            entry[1] += map(int, images[step].split(", "))
    return steps


def test_training_of_a_lab_runs_before_it_is_moved(start_ranks):
    for text in finish_ranks(*start_ranks("before.py", 2, "before", "--batch-size", "6")):
        images = re.findall(r"^images (\d+) ", text, re.M)
        assert list(map(int, images)) == [*range(EPOCHS * STEPS_OF_EPOCH)]


def test_moved_training_is_killed_and_resumes_on_other_ranks(start_ranks, tmp_path):
    """Undisturbed in the training's thread; killed on two ranks with worker processes; resumed on three."""
    n_steps = EPOCHS * STEPS_OF_EPOCH
    undisturbed = step_digests(finish_ranks(*start_ranks("after.py", 1, "undisturbed", "--workers", "0")))
    assert list(undisturbed) == [*range(n_steps)]
    all_images = [checksum for _, checksums in undisturbed.values() for checksum in checksums]
    assert len(set(all_images)) == n_steps * 12
    checkpoint = tmp_path / "run/checkpoint.pth"
    checkpoint.unlink()

    ranks, printed = start_ranks("after.py", 2, "killed")
    until(lambda: f"took {STEPS_OF_EPOCH + 2} " in printed[1].read_text())
    for process in ranks:
        process.kill()
    assert [process.wait() for process in ranks] == [-signal.SIGKILL] * 2
    killed = step_digests([path.read_text() for path in printed])
    assert n_steps - 1 not in killed
    in_both = [step for step, (_, checksums) in killed.items() if len(checksums) == 12]
    assert STEPS_OF_EPOCH in in_both
    assert [killed[step] for step in in_both] == [undisturbed[step] for step in in_both]

    texts = finish_ranks(*start_ranks("after.py", 3, "resumed", "--resume", checkpoint))
    resumed = step_digests(texts)
    first = min(resumed)
    assert first in (STEPS_OF_EPOCH, 2 * STEPS_OF_EPOCH)
    assert resumed == {step: entry for step, entry in undisturbed.items() if step >= first}
    for text in texts:
        assert f"of {N_VAL}" in text  # each photo once, without the sampler's padding
