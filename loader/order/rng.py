"""Randomness of a sample's augmentation: the same wherever and whenever the sample is decoded."""

import numpy as np

from .keys import key


def sample_rng_key(seed: int, source: str, epoch: int, version_ordinal: int) -> np.random.Generator:
    """A fresh Philox generator for one sample in one epoch.

    Its 128-bit key is the words key("augment", version_ordinal, 0) and key("augment", version_ordinal, 1).
    The *version* ordinal is used, so that a predicate does not change what happens to a sample.
    numpy refuses `Generator.spawn` here, which is right: its children would not follow from the key.
    """
    words = [key(seed, source, "augment", epoch, int(version_ordinal), word) for word in (0, 1)]
    return np.random.Generator(np.random.Philox(key=np.array(words, dtype=np.uint64)))
