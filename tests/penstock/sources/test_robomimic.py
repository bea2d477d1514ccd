"""HDF5 demonstrations of robomimic: every array of every demonstration is in the version, and no other file's bytes."""

import json
import re

import h5py
import numpy as np
import pytest

import loader
from loader.modalities import decoder_for
from loader.storage import open_store
from penstock.sources.importing.importer import Options
from penstock.sources.run_import import import_place

STEPS = (3, 1, 5)


def write(path, change=lambda file: None):
    """Three demonstrations of one file, in an order that is not of their numbers; the last is for validation."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(7)
    with h5py.File(path, "w") as file:
        file.create_group("data").attrs["env_args"] = json.dumps({"env_name": "Lift"})
        for number, steps in zip((10, 2, 1), STEPS, strict=True):
            demo = file.create_group(f"data/demo_{number}")
            demo.attrs.update(num_samples=steps, model_file="<mujoco/>", scale=np.float64("nan"))
            demo["actions"] = draw.normal(size=(steps, 7))
            demo["dones"] = np.zeros(steps, ">i8")
            demo.create_dataset(
                "obs/agentview_image",
                data=draw.integers(0, 255, (steps, 4, 4, 3), np.uint8),
                compression="gzip",
            )
        file["mask/train"] = np.array([b"demo_10", b"demo_2"])
        file["mask/20_percent"] = np.array([b"demo_2"])
        file["mask/valid"] = np.array([b"demo_1"])
        change(file)
    return path


def imported(folder, root, *without):
    options = Options(without=frozenset(without))
    return import_place(loader.Root(root), "robomimic", open_store(folder), "lift", options=options)


def test_each_demonstration_is_a_sample_with_its_arrays(tmp_path, contents):
    path = write(tmp_path / "in" / "lift" / "ph.hdf5")
    done = imported(tmp_path / "in", tmp_path / "root")
    assert (done.failures, done.samples) == ([], 3)
    found = contents(loader.Root(tmp_path / "root").open("lift"))
    assert list(found) == ["lift/ph/demo_1", "lift/ph/demo_2", "lift/ph/demo_10"]
    with h5py.File(path) as file:
        for key, (fields, columns) in found.items():
            demo = file["data"][key.rpartition("/")[2]]
            for field, array in (
                ("actions.npy", demo["actions"]),
                ("dones.npy", demo["dones"]),
                ("obs.agentview_image.npy", demo["obs/agentview_image"]),
            ):
                value = decoder_for(field)(fields[field], None)
                assert value.dtype.isnative
                np.testing.assert_array_equal(value, array[()])
            assert columns["n_steps"] == demo.attrs["num_samples"] == len(demo["actions"])
            told = json.loads(fields["episode.json"])
            assert json.loads(told["data"]["env_args"]) == {"env_name": "Lift"}
            assert told["demo"] == {
                "model_file": "<mujoco/>",
                "num_samples": columns["n_steps"],
                "scale": "nan",
            }
    assert [columns["split"] for _, columns in found.values()] == ["validation", "train", "train"]
    assert found["lift/ph/demo_2"][1]["masks"] == ["20_percent", "train"]


def test_arrays_that_are_left_out_are_not_read(tmp_path):
    write(
        tmp_path / "in" / "a.hdf5",
        lambda file: file["data/demo_1"].create_dataset("names", data=np.array([b"x"])),
    )
    assert "names is no array of numbers" in imported(tmp_path / "in", tmp_path / "root").failures[0]
    done = imported(tmp_path / "in", tmp_path / "root", "names.npy", "obs.agentview_image.npy")
    assert done.failures == []
    groups = loader.Root(tmp_path / "root").open("lift").manifest["groups"]
    assert {name for body in groups.values() for name in body["field_nbytes"]} == {
        "actions.npy",
        "dones.npy",
        "episode.json",
    }


def _external(file):
    file["data/demo_1/stolen"] = h5py.ExternalLink("secret.hdf5", "/data")


def _soft(file):
    file["data/demo_1/again"] = h5py.SoftLink("/data/demo_2/actions")


def _outside(file):
    file["data/demo_1"].create_dataset("raw", (4,), "u1", external=[("/etc/passwd", 0, 4)])


def _virtual(file):
    layout = h5py.VirtualLayout((3,), "u1")
    layout[:] = h5py.VirtualSource("secret.hdf5", "x", (3,))
    file["data/demo_1"].create_virtual_dataset("theirs", layout)


def _bomb(file):
    file["data/demo_1"].create_dataset("huge", (2**33,), "u1", chunks=(2**20,), compression="gzip")


def _uneven(file):
    file["data/demo_1/rewards"] = np.zeros(2)


def _nothing(file):
    del file["data"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (_external, r"bad\.hdf5, demo_1: 'stolen' is a link"),
        (_soft, r"'again' is a link"),
        (_outside, "has its bytes in another file"),
        (_virtual, "has its bytes in another file"),
        (_bomb, "8,589,934,592 bytes, more than"),
        (_uneven, r"arrays of \[2, 5\] steps"),
        (_nothing, r"bad\.hdf5 has no group 'data'"),
    ],
)
def test_a_file_that_is_not_as_it_should_be_is_named_and_the_others_are_read(tmp_path, change, told):
    write(tmp_path / "in" / "good.hdf5")
    write(tmp_path / "in" / "bad.hdf5", change)
    done = imported(tmp_path / "in", tmp_path / "root")
    (failure,) = done.failures
    assert re.search(told, failure)
    assert loader.Root(tmp_path / "root").state.newest("lift") is None


def test_a_damaged_file_is_corrupt_by_name_wherever_it_is_cut(tmp_path):
    whole = write(tmp_path / "whole.hdf5").read_bytes()
    for cut in (0, 100, len(whole) // 2, len(whole) - 1):
        folder = tmp_path / f"cut{cut}"
        folder.mkdir()
        (folder / "cut.hdf5").write_bytes(whole[:cut])
        (failure,) = imported(folder, tmp_path / f"root{cut}").failures
        assert "cut.hdf5 is no sound HDF5 file" in failure
