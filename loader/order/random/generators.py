"""Randomness of a sample's augmentation: the same wherever and whenever the sample is decoded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence

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


class _Key(ISeedSequence):
    """The key of a Philox generator as the seed sequence that numpy asks for it.

    `Philox(key=...)` also draws entropy from the operating system and throws it away, which takes twice as long.
    """

    def __init__(self, words: Iterable[int]) -> None:
        self._words = np.array(list(words), np.uint64)

    def generate_state(self, n_words: int, dtype: Any = np.uint64) -> np.ndarray[Any, Any]:
        """Return the two words of the key, uint64 [2], which is all that Philox asks for."""
        assert (n_words, np.dtype(dtype)) == (2, np.uint64)
        return self._words


def _philox(words: Iterable[int]) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(_Key(words)))  # type: ignore[arg-type]  # any ISeedSequence
