"""A place without a root of one's own: the same version everywhere, made once, however many processes ask for it."""

import multiprocessing
import shutil
from concurrent.futures import ProcessPoolExecutor

import loader
from tests.penstock.formats.builders import tars


def foreign_id(url, folder):
    return loader.open_foreign("webdataset", url, folder=folder).id


def test_processes_that_begin_together_have_one_version(three, tmp_path):
    folder = str(tmp_path / "caches")
    with ProcessPoolExecutor(3, multiprocessing.get_context("forkserver")) as pool:
        ids = set(pool.map(foreign_id, [str(three)] * 3, [folder] * 3))
    version = loader.open_foreign("webdataset", three, folder=folder)
    assert ids == {version.id}
    with loader.Root(tmp_path / "caches/root") as root:
        assert [version.name] == [f"{name}@1" for name in root.datasets()]
    plan = loader.plan({"p": version.select("txt")}, seed=3, global_batch=16)
    with loader.Loader(plan) as batches:
        assert len(next(iter(batches)).fields["txt"]) == 16


def test_place_keeps_its_version_until_it_changes(three, tmp_path):
    first = loader.open_foreign("webdataset", three, folder=tmp_path / "a")
    assert loader.open_foreign("webdataset", three, folder=tmp_path / "b").id == first.id
    other = loader.open_foreign("webdataset", three, folder=tmp_path / "a", without=["cls"])
    assert (other.id != first.id, other.fields) == (True, ("txt",))
    tars.fill(three, {"003.tar": tars.number_samples(3, 40)})
    grown = loader.open_foreign("webdataset", three, folder=tmp_path / "a")
    assert (len(grown), grown.id != first.id) == (160, True)
    named = loader.open_foreign("webdataset", three, name="photos", folder=tmp_path / "a")
    moved = shutil.move(three, tmp_path / "moved")
    assert loader.open_foreign("webdataset", moved, name="photos", folder=tmp_path / "b").id == named.id
