"""Random generators for a sample's augmentation: the same wherever and whenever the sample is decoded."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...native import hash_numbers
from .keyed_permutation import encode_field

Words = Sequence[tuple[int, int]]
"""Two words per sample, which key its Philox generator, or seed the global generators."""


def sample_words(
    seed: int,
    source: str,
    epoch: int,
    ordinals: np.ndarray,
) -> Words:
    """Return the generator keys for a transform. ordinals: int64 [n], version ordinals.

    The words are key("augment", version_ordinal, 0) and key("augment", version_ordinal, 1).
    """
    head = (seed, source, "augment", epoch)
    return _words(head, ordinals, ())


def item_words(seed: int, source: str, epoch: int, ordinals: np.ndarray) -> Words:
    """Return the numbers that seed the global generators for each item of a dataset. ordinals: int64 [n].

    The words are key("item", ordinal, 0) and key("item", ordinal, 1).
    """
    return _words((seed, source, "item", epoch), ordinals, ())


def collate_words(seed: int, source: str, step: int, slots: np.ndarray) -> Words:
    """Return the numbers that seed the global generators for a dataset's `collate`. slots: int64 [n], in the batch.

    The words are key("collate", slot, 0) and key("collate", slot, 1).
    """
    return _words((seed, source, "collate", step), slots, ())


def field_words(
    seed: int,
    source: str,
    epoch: int,
    ordinals: np.ndarray,
    field: str,
) -> Words:
    """Return the generator keys for a field's decoder. ordinals: int64 [n], version ordinals.

    The words are key("decode", version_ordinal, field, 0) and key("decode", version_ordinal, field, 1).
    """
    head = (seed, source, "decode", epoch)
    return _words(head, ordinals, (field,))


def sample_generator(
    seed: int,
    source: str,
    epoch: int,
    version_ordinal: int,
) -> np.random.Generator:
    ordinals = np.array([version_ordinal], np.int64)
    words = sample_words(seed, source, epoch, ordinals)
    return _generator(words)


def field_generator(
    seed: int,
    source: str,
    epoch: int,
    version_ordinal: int,
    field: str,
) -> np.random.Generator:
    ordinals = np.array([version_ordinal], np.int64)
    words = field_words(seed, source, epoch, ordinals, field)
    return _generator(words)


def _words(
    head: Sequence[int | str],
    ordinals: np.ndarray,
    tail: Sequence[str],
) -> Words:
    """Return both words of each ordinal. head, tail: fields of the hashed key before the ordinal, and after it."""
    head_bytes = b"".join(encode_field(field) for field in head)
    tail_bytes = b"".join(encode_field(field) for field in tail)
    words = np.empty((2, len(ordinals)), np.uint64)
    for number in (0, 1):
        tail_of_word = tail_bytes + encode_field(number)
        hash_numbers(
            head_bytes,
            ordinals,
            tail_of_word,
            words[number],
        )
    first, second = words.tolist()
    return list(zip(first, second, strict=True))


def _generator(words: Words) -> np.random.Generator:
    from .philox_generators import philox_generator  # imports numpy.random: 10 ms, only for draws

    return philox_generator(*words[0])
