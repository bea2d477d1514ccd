"""The key of a Philox generator, as numpy asks for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence


class PhiloxKey(ISeedSequence):
    """The key of a Philox generator as the seed sequence that numpy asks for it.

    `Philox(key=...)` also draws entropy from the operating system and throws it away, which takes twice as long.
    """

    def __init__(self, words: Iterable[int]) -> None:
        self._words = np.array(list(words), np.uint64)

    def generate_state(self, n_words: int, dtype: Any = np.uint64) -> np.ndarray[Any, Any]:
        """Return the two words of the key, uint64 [2], which is all that Philox asks for."""
        assert (n_words, np.dtype(dtype)) == (2, np.uint64)
        return self._words
