"""`loader.torch_dataset` under Lightning's Trainer: its own checkpoint saves and restores the position."""

import os
from pathlib import Path

import pytest
import torch

import loader
from tests.servers.processes import python

pytestmark = [
    pytest.mark.server,
    pytest.mark.filterwarnings("ignore"),  # Lightning's advice about workers, loggers and lengths
]

STEPS, EVERY = 9, 2


@pytest.fixture(scope="module")
def root(tmp_path_factory, samples):
    root = loader.Root(str(tmp_path_factory.mktemp("lightning") / "root"))
    samples.write(root, "photos", range(30), part_samples=11, fields=("cls", "txt"))
    return root


@pytest.fixture(scope="module")
def plan(root):
    return loader.plan({"photos": root.open("photos@1")}, seed=8, global_batch=6)


@pytest.fixture(scope="module")
def reference_steps(plan, properties):
    return list(properties.reference_digests(plan, STEPS).items())


class Crash(Exception):
    """What ends a training in the middle of a step."""


def module(crash_at=None):
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer, self.seen = torch.nn.Linear(1, 1), []

        def training_step(self, batch, batch_idx):
            assert isinstance(batch, loader.Batch)
            assert batch["cls"].device == batch.mask.device == self.device
            if batch.step == crash_at:
                raise Crash
            self.seen.append((batch.step, batch.digest))
            return self.layer(batch["cls"].float()[:, None]).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.001)

    return Module()


def fit(folder, batches, *, crash_at=None, checkpoint=None, accelerator="cpu"):
    """The (step, digest) that training_step finished."""
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    keep = ModelCheckpoint(folder, every_n_train_steps=EVERY, save_top_k=-1, filename="{step}")
    trainer = lightning.Trainer(
        accelerator=accelerator,
        devices=1,
        max_epochs=1,
        logger=False,
        callbacks=[keep],
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = module(crash_at)
    try:
        trainer.fit(model, batches, ckpt_path=checkpoint)
        assert trainer.strategy.root_device.type == ("cuda" if accelerator == "gpu" else "cpu")
    except Crash:
        assert crash_at is not None
    return model.seen


def as_dataset(plan):
    return loader.torch_dataset(plan, 0, 1, steps=STEPS)


def as_loader(plan):
    return loader.Loader(plan, 0, 1, steps=STEPS)


def in_workers(plan):
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(
        as_dataset(plan), batch_size=None, num_workers=2, multiprocessing_context="fork"
    )


@pytest.mark.parametrize(
    ("made", "accelerator"),
    [
        (as_loader, "cpu"),
        *(pytest.param(made, "cpu", marks=pytest.mark.nightly) for made in (as_dataset, in_workers)),
        *(pytest.param(made, "gpu", marks=pytest.mark.gpu) for made in (as_dataset, as_loader)),
    ],
)
def test_its_own_checkpoint_restores_the_position(plan, reference_steps, tmp_path, made, accelerator):
    on = {"accelerator": accelerator}
    assert fit(tmp_path / "whole", made(plan), **on) == reference_steps
    crashed = fit(tmp_path / "crashed", made(plan), crash_at=5, **on)
    assert crashed == reference_steps[:5]
    for step in (2, 4):
        checkpoint = tmp_path / "crashed" / f"step={step}.ckpt"
        assert fit(tmp_path / str(step), made(plan), checkpoint=checkpoint, **on) == reference_steps[step:]
    again = tmp_path / "2" / "step=6.ckpt"
    assert fit(tmp_path / "again", made(plan), checkpoint=again, **on) == reference_steps[6:]


TRAIN = """
import sys
import lightning, torch
from lightning.pytorch.callbacks import ModelCheckpoint
import loader

url, folder, steps = *sys.argv[1:3], int(sys.argv[3])


class Data(lightning.LightningDataModule):
    def train_dataloader(self):
        plan = loader.plan({"photos": loader.Root(url).open("photos@1")}, seed=8, global_batch=6)
        return loader.torch_dataset(plan, self.trainer.global_rank, self.trainer.world_size, steps=steps)


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, batch_idx):
        print(f"took {batch.step} {batch.digest}\\n", end="", flush=True)  # one write: two processes share the pipe
        return self.layer(batch["cls"].float()[:, None]).mean() * batch.weight

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.001)


trainer = lightning.Trainer(
    accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, logger=False,
    callbacks=[ModelCheckpoint(folder, every_n_train_steps=2, save_top_k=-1, filename="{step}")],
    enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(Module(), datamodule=Data())
"""


def test_two_processes_save_and_one_resumes(root, plan, reference_steps, tmp_path, shared):
    """Started by Lightning itself, which tells a process its rank only once the Trainer is there."""
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    done = python(
        "-W",
        "ignore",
        script,
        root.url,
        tmp_path,
        "5",
        env=os.environ | {"PYTHONPATH": str(Path(loader.__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr
    assert shared("run/scripts").took(done.stdout) == reference_steps[:5]
    assert fit(tmp_path / "one", as_dataset(plan), checkpoint=tmp_path / "step=4.ckpt") == reference_steps[4:]
