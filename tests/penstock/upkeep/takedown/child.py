"""What a process of tests/dataset/forks.py does to a root with a takedown: it runs it, and kills itself on the way."""

import os

import loader
from loader.dataset.log.log import Log
from penstock.formats.files_beside import files_beside
from penstock.upkeep.takedown.raw_objects import RawDeletion, delete_object
from penstock.upkeep.takedown.run import run_takedown
from tests.mortal_store import Death


def run(url, n, at=0):
    root = loader.Root(url)
    if at:
        root.store = Death(at).of(root.store)
        root._log = Log(root.store)
    return run_takedown(
        root, n, apply=True, raw=RawDeletion(delete_object, files_beside), raw_below=[os.path.dirname(url)]
    ).new
