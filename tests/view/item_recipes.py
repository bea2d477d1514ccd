"""Datasets of trainings that tests look back on, and the functions that make them."""

import os

import numpy as np

import loader

N = 40
FINGERPRINT = "photos-v1"


class Photos:
    """Pictures of one colour each, uint8 [24, 32, 3], and their numbers."""

    changed = ()
    """Items that differ from those of the training."""

    def __len__(self):
        return N

    def __getitem__(self, i):
        colour = np.array([i * 5 % 256, 200, i % 7 * 30], np.uint8)
        pixels = np.broadcast_to(colour, (24, 32, 3)).copy()
        pixels[: i % 24] = 255 - colour
        if i in self.changed:
            pixels[0, 0] ^= 1
        return {"image": pixels, "label": i % 10}


def key_of(i):
    return f"photo-{i:03d}"


def view(dataset=None, **options):
    settings = {"fingerprint": FINGERPRINT, "keys": key_of, **options}
    return loader.items(dataset or Photos(), **settings)


def photos():
    """The dataset itself."""
    print("loading photos")
    return view()


def view_by_name():
    return {"photos": view()}


def as_items():
    return {"decode": True, "items": {"photos": view()}}


def mirrored(sample, rng):
    return {**sample, "image": sample["image"][:, ::-1].copy()}


def with_transform():
    return {"transform": mirrored, "items": {"photos": view()}}


def photos_function():
    return loader.items(Photos, fingerprint=FINGERPRINT, keys=key_of)


def other_content():
    dataset = Photos()
    dataset.changed = range(N)
    return view(dataset)


def other_fingerprint():
    return view(fingerprint="photos-v2")


def other_name():
    return view(name="pictures")


def number():
    return {"photos": 7}


class Shorter(Photos):
    def __len__(self):
        return N - 1


def other_length():
    return view(Shorter())


def other_source():
    return {"items": {"pictures": view()}}


def no_dataset():
    return {"decode": True}


class Thing:
    """An object that only this module knows."""


class WithObjects(Photos):
    def __getitem__(self, i):
        return {
            **super().__getitem__(i),
            "thing": Thing(),
            "boxes": [[i, Thing()]],
            "texts": np.array([i], object),
        }


def with_objects():
    return view(WithObjects())


class Failing(Photos):
    def __getitem__(self, i):
        try:
            return {}[i]
        except KeyError as error:
            raise RuntimeError("labels.csv has no such row") from error


def failing():
    return view(Failing())


def failing_keys():
    def raise_lookup_error(i):
        raise LookupError("no name")

    return view(keys=raise_lookup_error)


class Dying(Photos):
    def __getitem__(self, i):
        os._exit(3)


def dying():
    return view(Dying())


def missing_items():
    return loader.items(_raise_missing, length=N, fingerprint=FINGERPRINT)


def _raise_missing():
    raise FileNotFoundError("photos.h5")
