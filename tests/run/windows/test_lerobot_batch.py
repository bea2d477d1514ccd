"""Windows under LeRobot's names: its offsets become rows, exactly or not at all."""

from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
import torch

import loader
from loader.errors import InvalidPlan, InvalidRuntime
from loader.modalities.video.packet_table import index_packets
from tests.refusals import refusal
from tests.run.numbered_video import read_numbers, video

CAMERA = "observation.images.top"


@pytest.fixture
def view() -> Iterator[loader.View]:
    with loader.Root("memory://lerobot-batch") as root:
        if not list(root.store.list("log/")):
            clip = video(20)
            with root.write(
                "arm", facts={"action.npy": {"fps": "25"}, f"{CAMERA}.mp4": {"fps": "25"}}
            ) as writer:
                writer.add(
                    "ep0",
                    {
                        "action.npy": np.arange(40, dtype=np.float32).reshape(20, 2),
                        "action.ns.npy": np.arange(20) * 40_000_000,
                        f"{CAMERA}.mp4": clip,
                        f"{CAMERA}.mp4.packets": index_packets(clip),
                        "cls": 3,
                    },
                )
        yield root.open("arm@1").select("action.npy", f"{CAMERA}.mp4", "cls")


def test_batches_have_lerobots_names_and_shapes(view: loader.View) -> None:
    deltas = {"action": [row / 25 for row in range(-1, 4)], CAMERA: [0.0]}
    at = loader.delta_timestamps(view, deltas)
    assert at == {"action.npy": loader.rows(-1, 4), f"{CAMERA}.mp4": loader.rows(0, 1)}
    plan = loader.plan({"arm": loader.windows(view, anchor="action.npy", at=at)}, seed=1, global_batch=20)
    with loader.Loader(plan, workers=0, steps=1) as batches:
        (batch,) = batches
    policy = loader.to_lerobot(batch)
    assert set(policy) == {
        "action",
        "action_is_pad",
        CAMERA,
        f"{CAMERA}_is_pad",
        "frame_index",
        "timestamp",
        "cls",
    }
    rows = policy["frame_index"]
    assert policy["action"].shape == (20, 5, 2)
    assert (policy["action"][:, 1, 0] == 2 * rows).all()
    assert policy["action_is_pad"].dtype == torch.bool
    assert (policy["action_is_pad"].sum(1) == (rows == 0) + torch.clamp(rows - 16, min=0)).all()
    pictures = policy[CAMERA]
    assert pictures.dtype == torch.float32
    assert pictures.shape == (20, 3, 64, 120)
    assert 0 <= float(pictures.min()) < float(pictures.max()) <= 1
    shown = (pictures * 255).round().to(torch.uint8).permute(0, 2, 3, 1)
    assert read_numbers(shown.numpy()) == rows.tolist()
    assert torch.allclose(policy["timestamp"], rows.to(torch.float32) / 25)
    assert policy["cls"].tolist() == [3] * 20
    assert loader.to_lerobot(batch, stacked=[CAMERA])[CAMERA].shape == (20, 1, 3, 64, 120)


def test_offsets_between_rows_are_refused(view: loader.View) -> None:
    with refusal(InvalidPlan, what="delta_timestamps['action']", given=0.05):
        loader.delta_timestamps(view, {"action": [0.0, 0.05]})
    with refusal(InvalidPlan, what="delta_timestamps", given="observation.state"):
        loader.delta_timestamps(view, {"observation.state": [0.0]})
    for wrong, value in (([], []), ([float("nan")], (float("nan"), "25")), (["soon"], ("soon", "25"))):
        with refusal(InvalidPlan, what="delta_timestamps['action']", given=value):
            loader.delta_timestamps(view, {"action": wrong})
    with refusal(InvalidPlan, what="delta_timestamps['action']", given=(0.1, 0)):
        loader.delta_timestamps(view, {"action": [0.1]}, fps=0)
    assert loader.delta_timestamps(view, {"action": [0.1]}, fps=Fraction(30)) == {
        "action.npy": loader.rows(3, 4)
    }


def test_batch_without_windows_is_refused(view: loader.View) -> None:
    plan = loader.plan({"arm": view.select("cls")}, seed=1, global_batch=1)
    with (
        loader.Loader(plan, workers=0, steps=1) as batches,
        refusal(InvalidRuntime, what="batch", given=["cls"]),
    ):
        loader.to_lerobot(next(iter(batches)))
