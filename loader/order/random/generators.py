"""Random generators for a sample's augmentation: the same wherever and whenever the sample is decoded."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...native import hash_numbers
from .keyed_permutation import framed

Words = Sequence[tuple[int, int]]
"""The two key words of each sample's Philox generator."""


def sample_words(seed: int, source: str, epoch: int, ordinals: np.ndarray) -> Words:
    """Return the generator keys for a transform. ordinals: int64 [n], version ordinals.

    The words are key("augment", version_ordinal, 0) and key("augment", version_ordinal, 1).
    """
    return _words((seed, source, "augment", epoch), ordinals, ())


def field_words(seed: int, source: str, epoch: int, ordinals: np.ndarray, field: str) -> Words:
    """Return the generator keys for a field's decoder. ordinals: int64 [n], version ordinals.

    The words are key("decode", version_ordinal, field, 0) and key("decode", version_ordinal, field, 1).
    """
    return _words((seed, source, "decode", epoch), ordinals, (field,))


def sample_rng_key(seed: int, source: str, epoch: int, version_ordinal: int) -> np.random.Generator:
    return _generator(sample_words(seed, source, epoch, np.array([version_ordinal], np.int64)))


def field_rng_key(
    seed: int, source: str, epoch: int, version_ordinal: int, field: str
) -> np.random.Generator:
    return _generator(field_words(seed, source, epoch, np.array([version_ordinal], np.int64), field))


def _words(before: Sequence[int | str], ordinals: np.ndarray, behind: Sequence[str]) -> Words:
    head, tail = b"".join(map(framed, before)), b"".join(map(framed, behind))
    first, second = np.empty((2, len(ordinals)), np.uint64)
    hash_numbers(head, ordinals, tail + framed(0), first)
    hash_numbers(head, ordinals, tail + framed(1), second)
    return list(zip(first.tolist(), second.tolist(), strict=True))


def _generator(words: Words) -> np.random.Generator:
    from .philox_key import generator_of  # imports numpy.random: 10 ms, only for draws

    return generator_of(*words[0])
