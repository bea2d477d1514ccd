"""HDF5 demonstrations of robomimic: every array of every demonstration is in the version, and no other file's bytes."""

import base64
import importlib
import json
import lzma
import re

import h5py
import numpy as np

import loader
from loader.errors import Corrupt, InvalidSample
from loader.modalities import find_decoder
from loader.storage import open_store
from penstock.formats.episodes import robomimic_import as robomimic
from penstock.formats.importer import ColumnarOptions
from penstock.formats.importing import read_units
from penstock.formats.importing.read_units import in_workers
from tests.penstock.formats.versions import contents, importing
from tests.refusals import refusal

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


def import_lift(folder, root, *without):
    return importing("robomimic", folder, root, without=without, dataset="lift")[0]


def test_each_demonstration_is_a_sample_with_its_arrays(tmp_path):
    path = write(tmp_path / "in" / "lift" / "ph.hdf5")
    done = import_lift(tmp_path / "in", tmp_path / "root")
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
                value = find_decoder(field)(fields[field], None)
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
        _names,
    )
    done = import_lift(tmp_path / "in", tmp_path / "root", "names.npy", "obs.agentview_image.npy")
    assert done.failures == []
    groups = loader.Root(tmp_path / "root").open("lift").manifest["groups"]
    assert {name for body in groups.values() for name in body["field_nbytes"]} == {
        "actions.npy",
        "dones.npy",
        "episode.json",
    }


def test_runs_have_each_demonstration_once(tmp_path, monkeypatch):
    write(tmp_path / "in/a.hdf5")
    monkeypatch.setattr(robomimic, "RUN_BYTES", 600)
    store = open_store(tmp_path / "in")
    readable = robomimic.find_readable(store, list(store.list()), ColumnarOptions())
    runs = list(readable.runs(readable.infos[0]))
    assert [(run.first, run.stop, run.nbytes) for run in runs] == [(0, 2, 672), (2, 3, 336)]
    keys = [sample.key for run in runs for sample in readable.samples(run)]
    assert keys == ["a/demo_1", "a/demo_2", "a/demo_10"]


def _names(file):
    file["data/demo_1"].create_dataset("names", data=np.array([b"x"]))


def link(name, to):
    """Put a link there, in the place of what there is."""

    def change(file):
        file.pop(name, None)
        file[name] = to

    return change


def outside(name, shape, dtype):
    """An array whose bytes lie in a file of the machine."""

    def change(file):
        file.pop(name, None)
        nbytes = np.dtype(dtype).itemsize * shape[0]
        file.create_dataset(name, shape, dtype, external=[("/etc/passwd", 0, nbytes)])

    return change


def virtual(name, dtype):
    """An array whose bytes lie in another HDF5 file."""

    def change(file):
        layout = h5py.VirtualLayout((3,), dtype)
        layout[:] = h5py.VirtualSource("secret.hdf5", "x", (3,))
        file.create_virtual_dataset(name, layout)

    return change


def bomb(name, nbytes, dtype):
    """An array of which nothing is stored."""
    return lambda file: file.create_dataset(name, (nbytes,), dtype, chunks=(2**20,), compression="gzip")


SPOILT = {
    "names": (_names, "names is not an array of numbers"),
    "external": (link("data/demo_1/stolen", h5py.ExternalLink("secret.hdf5", "/data")), "'stolen' is a link"),
    "soft": (link("data/demo_1/again", h5py.SoftLink("/data/demo_2/actions")), "demo_1: 'again' is a link"),
    "outside": (outside("data/demo_1/raw", (4,), "u1"), "has its bytes in another file"),
    "virtual": (virtual("data/demo_1/theirs", "u1"), "has its bytes in another file"),
    "mask_outside": (outside("mask/train", (1,), "S400"), "/mask/train has its bytes in another file"),
    "mask_virtual": (virtual("mask/theirs", "S8"), "/mask/theirs has its bytes in another file"),
    "mask_link": (link("mask/theirs", h5py.ExternalLink("secret.hdf5", "/mask/train")), "'theirs' is a link"),
    "mask_group": (link("mask", h5py.ExternalLink("secret.hdf5", "/mask")), "'mask' is a link"),
    "mask_bomb": (
        bomb("mask/huge", 2**40, "S1"),
        "/mask/huge: 1,099,511,627,776 bytes; at most 67,108,864 are",
    ),
    "mask_numbers": (link("mask/numbers", np.arange(3)), "/mask/numbers is not a list of names"),
    "bomb": (
        bomb("data/demo_1/huge", 2**33, "u1"),
        r"demo_1 has 8,589,9\d\d,\d{3} bytes, more than 4,160,749,568",
    ),
    "uneven": (link("data/demo_1/rewards", np.zeros(2)), r"arrays of \[2, 5\] steps"),
    "nothing": (lambda file: file.pop("data"), "has no group 'data'"),
}
"""File name -> (change, expected error)."""


def test_files_that_are_not_as_they_should_be_are_named_and_the_others_are_read(tmp_path):
    whole = write(tmp_path / "in/good.hdf5").read_bytes()
    told = {name: said for name, (_, said) in SPOILT.items()}
    for name, (change, _) in SPOILT.items():
        write(tmp_path / f"in/{name}.hdf5", change)
    for cut in (0, 100, len(whole) // 2, len(whole) - 1):
        (tmp_path / f"in/cut{cut}.hdf5").write_bytes(whole[:cut])
        told[f"cut{cut}"] = rf"cut{cut}\.hdf5 is not a valid HDF5 file"
    done = import_lift(tmp_path / "in", tmp_path / "root")
    for name, why in told.items():
        assert [bool(re.search(why, one)) for one in done.failures if f"/{name}.hdf5" in one] == [True], name
    assert len(done.failures) == len(told)
    assert loader.Root(tmp_path / "root").state.newest("lift") is None


HOLDS = """
    XQAAgAD//////////wBEkgSEb3p7d0rEZk9qHQ9yaR4YzB8ET6AEX0FIc/jLlA3WOBKeU9MAGfETF86KRklOaDWZCOJi+we8RvDdJOA5
    GcYXyKbwjtCQm7XiRhSG8Z+3lAP3CVismRFICs+VSjT9J0+v8hThdCdQu+yBGCFU83OKIzdR2XgLUeaC46Wnm0MSrbXHifd3IZVwNtSD
    ImKQ1cn6XEkzZo06cx5+X0b/1RMPVt8Wm3fsnKdFNZIP5N6KgZMD10gWJe45WrzCroUcLZ5J7lMqs0j8RuuMImjLnykDHw1+USxvgx+d
    jOSaK3z+3SR7XwFQK9IKN6spXUIkFtiGmvSWi8QxxeXfqC9FCui4R7Plu+X8a3BpmR+Kw5E1nK1iuuqzJ+86M8p/0YZlsWv/iiAQeTkB
    5BRd20QV2JwtT0FiwU12K908JIFjb1tCjJ3WwdqG7TOxIbTwzYq4ZkoZwnFMKG3kNB/EJoEoVtiUiFPCTdjTMIScdcL9jDkZblpgNvR0
    fRlngegUM74H7Xq0zQbaLQ/gPZE2Se8KNruoy47cZHZCVg+FzgIQro3xQQdSreq2IEjnf/M58La93i39pAKb1P8aCBjriOFCU5rfcAVG
    cvHi9wYadjYueBa7i6ha4gyCDPXIborI+R+R9FpUubVHCz8NTol8qokyVTQF2r4llbEU64z3UAY/9WmU5URPUbPajOccHyenmrxfN/S8
    keRe8QU4zapS/d40Zc217Vi9wU8QRdgeGkE5g0RNAn3cVwSgHbyG/UeAwZXqFF80Lykf2KeV9jVNfM8c6I5WNtinjHPhlgwiBSdNmko1
    PPGnDKFUyzldrLNScUw15LYr+20iUW/6W8kYdCYCuY2la9UX8L5oX5OouUIWA9f+do4dc34qVw4U/X6Dv75Myz9foY6YcWaglxQkYQAz
    zcGuIXrDEH6jwXB24cyD8d8dWkqjeJsovV6LsHXK5AZssIOSJIzD8oOtEkIX/6sydaI=
"""
"""A packed file with one byte changed, from which HDF5 2.0 never returns."""

DEADLY = """
import os, signal
from penstock.formats.episodes import robomimic_import as robomimic

OPTIONS = robomimic.OPTIONS

def find_readable(store, infos, options):
    if [info.key for info in infos] == ["kills.hdf5"]:
        os.kill(os.getpid(), signal.SIGSEGV)
    return robomimic.find_readable(store, infos, options)
"""


def test_file_that_holds_its_reader_is_named(tmp_path, monkeypatch):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/holds.hdf5").write_bytes(lzma.decompress(base64.b64decode(HOLDS)))
    monkeypatch.setattr(read_units, "LIMIT_S", 1)
    (why,) = import_lift(tmp_path / "in", tmp_path / "root").failures
    assert "/in/holds.hdf5 cannot be read: took longer than 1 s and was killed; repair it" in why


def test_file_that_kills_its_reader_costs_itself_and_errors_keep_their_fields(tmp_path, monkeypatch):
    (tmp_path / "deadly.py").write_text(DEADLY)
    monkeypatch.syspath_prepend(tmp_path)
    deadly = importlib.import_module("deadly")
    whole = write(tmp_path / "in/linked.hdf5", SPOILT["mask_link"][0]).read_bytes()
    (tmp_path / "in/cut.hdf5").write_bytes(whole[:100])
    (tmp_path / "in/kills.hdf5").write_bytes(b"")
    store = open_store(str(tmp_path / "in"))
    infos = {info.key: info for info in store.list("")}
    options = ColumnarOptions()
    objects = robomimic.find_readable(store, [*infos.values()], options)
    with in_workers(objects, deadly.find_readable, store, options, 1) as isolated:
        cut = f"{store.url}/cut.hdf5"
        with refusal(Corrupt, what="file", where=cut, given="OSError", accepted="HDF5"):
            list(isolated.runs(infos["cut.hdf5"]))
        killed = "its process was killed by SIGSEGV; a new one was killed by SIGSEGV"
        with refusal(Corrupt, what="crashed", where=f"{store.url}/kills.hdf5", given=killed):
            list(isolated.runs(infos["kills.hdf5"]))
        linked = f"{store.url}/linked.hdf5"
        with refusal(InvalidSample, what="theirs", where=linked, given="a link"):
            list(isolated.runs(infos["linked.hdf5"]))
