"""Randomness of a sample's augmentation: the same wherever and whenever the sample is decoded."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from .keyed_permutation import key


def sample_rng_key(seed: int, source: str, epoch: int, version_ordinal: int) -> np.random.Generator:
    """Return a fresh Philox generator for one sample in one epoch.

    Its 128-bit key is the words key("augment", version_ordinal, 0) and key("augment", version_ordinal, 1). With the
    version's ordinal a predicate does not change what happens to a sample. numpy refuses `Generator.spawn` here, which
    is right: its children would not follow from the key.
    """
    return _philox(key(seed, source, "augment", epoch, int(version_ordinal), word) for word in (0, 1))


def field_rng_key(
    seed: int, source: str, epoch: int, version_ordinal: int, field: str
) -> np.random.Generator:
    """Return a fresh Philox generator for what a decoder of one field draws (a place in a video).

    Its key is the words key("decode", version_ordinal, field, 0) and key("decode", version_ordinal, field, 1): apart
    from `sample_rng_key`, so that selecting one more field does not change what a transform draws.
    """
    return _philox(key(seed, source, "decode", epoch, int(version_ordinal), field, word) for word in (0, 1))


def _philox(words: Iterable[int]) -> np.random.Generator:
    from .philox_key import PhiloxKey  # numpy.random, 10 ms that a run without draws does not pay

    return np.random.Generator(np.random.Philox(PhiloxKey(words)))  # type: ignore[arg-type]  # any ISeedSequence
