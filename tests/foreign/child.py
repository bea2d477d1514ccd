"""A registration, or a sealing, by a process of its own, killed at the write number `at` of the root."""

import loader
from loader.dataset.root import root_over
from loader.foreign.register import register
from loader.storage import open_store


def run(root, place, at, when, forks, seal=False):
    import runpy

    mortal = runpy.run_path(forks)["Mortal"]
    if seal:
        from penstock.registered.sealing import seal as work

        return work(root_over(mortal(open_store(root), at, when, {"put_if_absent"})).open("photos")).failures
    store = mortal(open_store(root), at, when, {"put_if_absent", "put", "put_file"})
    return register(root_over(store), "webdataset", place, "photos").version.id


assert loader
