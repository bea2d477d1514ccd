"""Accelerate: what it leaves alone, what it saves and restores, and what it must not be given."""

import pytest

import loader

pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore")]

STEPS, SAVED = 7, 4

TRAIN = """
import sys
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader
import loader

url, folder, way, device, first, stop = *sys.argv[1:5], int(sys.argv[5]), int(sys.argv[6])
whole = DataLoaderConfiguration(dispatch_batches=False, use_stateful_dataloader=True)
accelerator = Accelerator(cpu=device == "cpu", dataloader_config=None if way == "default" else whole)
plan = loader.plan({"photos": loader.Root(url).open("photos@1")}, seed=8, global_batch=6)
here = (accelerator.process_index, accelerator.num_processes)
if way == "loader":
    batches = loader.Loader(plan, *here, steps=7)
    accelerator.register_for_checkpointing(batches)
else:
    batches = DataLoader(loader.torch_dataset(plan, *here, steps=7), batch_size=None)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.001)
model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
if first:
    accelerator.load_state(folder)
for batch in batches:
    batch = batch.to(accelerator.device, non_blocking=True)
    assert batch["cls"].device.type == batch.mask.device.type == device
    print(f"took {batch.step} {batch.digest}\\n", end="", flush=True)
    accelerator.backward(model(batch["cls"].float()[:, None]).mean() * batch.weight)
    optimizer.step()
    optimizer.zero_grad()
    if batch.step + 1 == stop:
        accelerator.save_state(folder)
        break
accelerator.end_training()
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory, samples):
    root = loader.Root(str(tmp_path_factory.mktemp("accelerate") / "root"))
    samples.write(root, "photos", range(30), part_samples=11, fields=("cls", "txt"))
    return root


@pytest.fixture(scope="module")
def reference_steps(root, properties):
    plan = loader.plan({"photos": root.open("photos@1")}, seed=8, global_batch=6)
    return list(properties.reference_digests(plan, STEPS).items())


@pytest.fixture(scope="module")
def do(shared):
    names = ("torch._dynamo", "torchdata.stateful_dataloader", "accelerate")  # (optimizers import _dynamo)
    with shared("run/scripts").script_runner(shared("dataset/forks"), *names) as do:
        yield do


@pytest.fixture
def train(root, tmp_path, do):
    """train(processes, way, first, stop, device="cpu") -> what became of the processes."""
    script = tmp_path / "train.py"
    script.write_text(TRAIN)

    def train_script(processes, way, first, stop, device="cpu"):
        arguments = (root.url, tmp_path / "saved", way, device, first, stop)
        gpus = "0" if device == "cuda" else ""
        return do(script, *arguments, folder=tmp_path, world_size=processes, gpus=gpus)

    return train_script


def test_registered_loader_is_saved_with_two_processes_and_resumed_with_one(train, reference_steps):
    done = train(2, "loader", 0, SAVED)
    assert (done.codes, done.took) == ([0, 0], reference_steps[:SAVED]), done.errors
    done = train(1, "loader", SAVED, 0)
    assert (done.codes, done.took) == ([0], reference_steps[SAVED:]), done.errors


@pytest.mark.parametrize(
    ("way", "device"),
    [
        ("prepared", "cpu"),
        pytest.param("prepared", "cuda", marks=pytest.mark.gpu),
        pytest.param("loader", "cuda", marks=pytest.mark.gpu),
    ],
)
def test_one_process_is_saved_and_resumed(train, reference_steps, way, device):
    done = train(1, way, 0, SAVED, device)
    assert (done.codes, done.took) == ([0], reference_steps[:SAVED]), done.errors
    done = train(1, way, SAVED, 0, device)
    assert (done.codes, done.took) == ([0], reference_steps[SAVED:]), done.errors


@pytest.mark.parametrize("way", ["prepared", "default"])
def test_prepared_dataloader_of_two_processes_gives_no_batch(train, way):
    """It would be split among the processes a second time; the package fails before the first batch."""
    done = train(2, way, 0, SAVED)
    assert 0 not in done.codes
    assert "TypeError" in done.errors
    assert done.took == []
