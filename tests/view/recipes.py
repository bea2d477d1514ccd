"""Recipes of the trainings that tests look back on."""

import os
import time

import numpy as np


def crop(sample, rng):
    """A square of 24 px, mirrored half of the time, uint8 [3, 24, 24]."""
    photo = sample["jpg"]
    top, left = (int(rng.integers(side - 23)) for side in photo.shape[:2])
    square = photo[top : top + 24, left : left + 24]
    if rng.random() < 0.5:
        square = square[:, ::-1]
    return {"jpg": np.ascontiguousarray(square.transpose(2, 0, 1)), "cls": sample["cls"]}


def normalise(sample, rng):
    """The same square as float32, of mean 0.5 and deviation 0.25."""
    square = crop(sample, rng)
    return {**square, "jpg": (square["jpg"].astype(np.float32) / 255 - 0.5) / 0.25}


def jitter(sample, rng):
    """Other values at each epoch, and a draw beside them."""
    return {**sample, "x.npy": sample["x.npy"] + rng.integers(1000), "draw": rng.random()}


def jittered():
    return {"transform": jitter}


def recipe():
    return {"decode": True, "transform": crop}


def floats():
    return {"transform": normalise}


def plain():
    return {}


def mistaken():
    return {"decode": {"cls": _mistaken}}


def one_argument():
    return {"transform": _one_argument}


def hanging():
    return {"transform": _hangs}


def dying():
    return {"transform": _dies}


def unsendable():
    return {"transform": _unsendable}


def raising():
    raise ValueError("no such file: labels.csv")


def nothing():
    return None


def _mistaken(data, rng):
    return data.width


def _one_argument(sample):
    return sample


def _hangs(sample, rng):
    time.sleep(600)


def _dies(sample, rng):
    os._exit(3)


def _unsendable(sample, rng):
    return {"made": (one for one in ())}


def threads():
    return {"transform": _threads}


def _threads(sample, rng):
    import torch

    return {"threads": torch.get_num_threads()}


def jax_arrays():
    return {"transform": _jax_arrays}


def _jax_arrays(sample, rng):
    import jax.numpy as jnp

    photo = jnp.asarray(sample["jpg"])
    return {"jpg": photo, "brain": photo.astype(jnp.bfloat16)}


def tensors():
    return {"transform": _tensors}


def _tensors(sample, rng):
    import torch

    photo = torch.from_numpy(sample["jpg"])
    return {"jpg": photo, "brain": photo.float().bfloat16()}
