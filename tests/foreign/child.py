"""A registration by a process of its own, killed at the write number `at` of the root."""

import loader
from loader.dataset.root import root_over
from loader.foreign.register import register
from loader.storage import open_store


def run(root, place, at, when, forks):
    import runpy

    mortal = runpy.run_path(forks)["Mortal"]
    store = mortal(open_store(root), at, when, {"put_if_absent", "put", "put_file"})
    return register(root_over(store), "webdataset", place, "photos").version.id


assert loader
