"""A training on photos of which one is black: wherever it stands, the loss is not a number."""

import numpy as np

import loader
from tests.view import recipes
from tests.view.conftest import BATCH, black, write_photos

DATASET = "planted"
BAD_KEY = "p/0"
STEPS = 5


def write_bad_sample(root):
    """Publish planted@1, and train on it as the run `old`; return the first step with the bad sample and its slot."""
    version = write_photos(root, DATASET, p0={"jpg": black()})
    return train_run(root, version.select("jpg", "cls"), "old")[0]


def train_run(root, view, run):
    """Train, and return the bad sample's (step, slot) pairs."""
    plan = loader.plan({"photos": view}, seed=3, global_batch=BATCH)
    trail = loader.Trail(root, run, recipe="tests.view.recipes:recipe", ranks="all", tensors_every=1)
    places = []
    options = {"framework": "numpy", "workers": 0, **recipes.recipe()}
    with loader.Loader(plan, steps=STEPS, trail=trail, **options) as batches:
        for batch in batches:
            is_bad = np.array([key == BAD_KEY for _, key in batch.ids])
            losses = np.where(is_bad, np.nan, 1.0)
            batches.note(loss=losses.mean(), per_sample={"loss": losses})
            slots = np.flatnonzero(is_bad).tolist()
            places += [(batch.step, slot) for slot in slots]
    return places
